"""Delivery of a crawl's requests: from the spider to the queue, past the filter, and from the queue to the engine."""
