"""Serializers of users, for SCHEDULER_SERIALIZER: each a module with `dumps` and `loads`."""
