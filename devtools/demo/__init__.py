"""The demo: some workers crawl a site with a common queue and filter, and every page is accounted for."""
