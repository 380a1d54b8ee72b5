"""Whole crawls of real workers on a virtual clock, with a simulated server."""
