"""Start URLs in Redis: leased by a worker, and acknowledged when their requests are queued."""
