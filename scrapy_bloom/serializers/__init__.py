"""Serializers of requests for SCHEDULER_SERIALIZER: modules with `dumps` and `loads`."""
