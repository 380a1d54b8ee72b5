"""The demo: workers crawl a site, and every page is accounted for."""
