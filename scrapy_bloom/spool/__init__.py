"""Undelivered requests on disk: those beyond the memory limit while Redis is away, and those of ended crawls."""
