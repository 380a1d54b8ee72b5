"""Crawls over real servers with faults at random moments, for a given time: do they miss pages?"""
