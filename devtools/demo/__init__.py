"""The demo: some workers crawl one site over one queue and one filter, and every page is accounted for."""
