"""Stored data, and the two places where it can be: Redis and this process. Knows operations, not filters."""
