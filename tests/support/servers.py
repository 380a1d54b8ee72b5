"""Servers for tests: one that wants a kind that is not installed is skipped, and fails where CI=true."""

import os
from contextlib import AbstractContextManager

import pytest

from devtools import servers
from devtools.servers import BINARIES, KINDS, Server, free_port

__all__ = ["BINARIES", "KINDS", "Server", "free_port", "running"]


def running(kind: str, *options: str) -> AbstractContextManager[Server]:
    """A server for as long as the block lasts."""
    if kind not in servers.available():
        reason = f"no {kind} server on this machine: install Debian's redis-server"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return servers.running(kind, *options)
