"""Processes of the tests' own code, forked from a process that has imported it."""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
"""Makes processes that inherit nothing of a test, without the time for imports."""
# The package's names are imported when they are used: these modules use them.
CONTEXT.set_forkserver_preload(["tests.support.make_filter", "tests.support.servers"])
