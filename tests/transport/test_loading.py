"""A server that loads its data has executed no command of a batch: none is in doubt."""

import os
import threading

import redis

from devtools.waiting import until
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import Command, Failure
from scrapy_bloom.transport.retry import disable_client_retries
from tests.support.servers import Server, running

# A key takes 0.1 s to load, and the server replies after each. Internal options of Redis and Valkey.
SLOW = ("--key-load-delay", "100000", "--loading-process-events-interval-bytes", "1024")
KEYS = 20


def is_loading(server: Server) -> bool:
    with server.client() as client:
        try:
            disable_client_retries(client).get("a")
        except redis.BusyLoadingError:
            return True
        except redis.ConnectionError:  # it does not listen yet
            return False
    return False


def test_batch(key: str) -> None:
    """Each command of a batch fails without doubt, and is executed once later."""
    with running("valkey", *SLOW) as server, server.client() as client:
        transport = transport_for(disable_client_retries(client))
        transport.execute([Command("SET", f"{key}:{number}", os.urandom(2048)) for number in range(KEYS)])
        client.save()
        server.kill()
        starting = threading.Thread(target=server.start)
        starting.start()
        try:
            until(lambda: is_loading(server))
            outcomes = transport.attempt([Command("INCR", f"{key}:counter")] * 3)
        finally:
            starting.join()
        assert [type(outcome) for outcome in outcomes] == [Failure] * 3
        assert {type(outcome.error) for outcome in outcomes} == {redis.BusyLoadingError}
        assert [outcome.is_in_doubt for outcome in outcomes] == [False] * 3
        assert transport.execute([Command("INCR", f"{key}:counter")] * 3) == [1, 2, 3]
