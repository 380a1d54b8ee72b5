"""Reports to a crawl on its filter: stats, log lines, warnings."""
