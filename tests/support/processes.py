"""Processes of the tests' own code, forked from one that has imported it."""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
"""Makes processes that inherit nothing of a test, as new ones, without the seconds that imports take."""
CONTEXT.set_forkserver_preload(["pytest", "scrapy_bloom"])
