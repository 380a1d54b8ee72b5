"""Crawls over real servers with faults at random moments, until the time is over: whether any page was missed."""
