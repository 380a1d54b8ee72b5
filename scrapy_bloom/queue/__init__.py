"""The queue of a crawl and its workers: one script checks the filter, queues, acknowledges and leases."""
