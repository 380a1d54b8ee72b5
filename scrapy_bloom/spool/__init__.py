"""Undelivered requests on disk: those beyond the memory limit while Redis is unreachable, and those of ended crawls."""
