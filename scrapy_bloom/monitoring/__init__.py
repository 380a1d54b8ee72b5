"""Report a crawl's filter and queue: stats, log lines, warnings."""
