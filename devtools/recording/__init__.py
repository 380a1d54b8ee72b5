"""A short film of a crawl in a terminal, as an animated SVG."""
