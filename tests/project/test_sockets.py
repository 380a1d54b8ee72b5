"""A test that leaves a client, a socket or an event loop open fails, and no test after it."""

import re
import subprocess
import sys
from pathlib import Path

from devtools.crawl_process import ROOT

TESTS = """
import asyncio
import gc
import socket

import redis

kept = []

def test_client_is_left(valkey):
    client = valkey.client()
    client.ping()
    client.cycle = client

def test_connection_is_left(valkey):
    connection = redis.Connection(port=valkey.port)
    connection.connect()
    connection.cycle = connection

def test_connection_is_collected(valkey):
    test_connection_is_left(valkey)
    gc.collect()

def test_socket_is_left():
    kept.append(socket.create_server(("127.0.0.1", 0)))

def test_event_loop_is_left():
    kept.append(asyncio.new_event_loop())

def test_everything_is_closed(valkey):
    gc.collect()
    with valkey.client() as client, socket.create_connection(("127.0.0.1", valkey.port)):
        client.ping()
    asyncio.new_event_loop().close()
"""


def test_what_is_left_open(tmp_path: Path) -> None:
    """Also if the garbage collector has closed a connection before the end of the test."""
    path = tmp_path / "test_leaks.py"
    path.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", f"{ROOT / 'pyproject.toml'}", f"{path}"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    left = re.findall(r"^ERROR \S*::test_(\w+)_is_\w+ - Failed: left open", said, re.MULTILINE)
    assert left == ["client", "connection", "connection", "socket", "event_loop"], said
    assert "6 passed, 5 errors" in said
