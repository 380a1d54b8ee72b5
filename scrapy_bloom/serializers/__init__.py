"""Serialisers of requests, for SCHEDULER_SERIALIZER; each is a module with `dumps` and `loads`."""
