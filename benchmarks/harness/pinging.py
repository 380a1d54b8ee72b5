"""A client in its own process that pings a server all the time, and notes how long each reply took."""

import multiprocessing
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import redis

# Between two pings the client leaves its core to others: a pause is noted short by at most this time.
_PACE_SECONDS = 0.0005
_PATIENCE_SECONDS = 60.0


class Pings:
    """The pings of a block: when each was sent, and the seconds until its reply. It is empty inside the block."""

    def __init__(self) -> None:
        self.sent: Sequence[float] = ()
        self.waits: Sequence[float] = ()

    def between(self, start: float, end: float) -> list[float]:
        """Return the waits of the pings that were on their way between two moments of `time.monotonic`.

        If the machine was too busy for one, it is the next one.
        """
        pings = [(sent, wait) for sent, wait in zip(self.sent, self.waits, strict=True) if sent + wait >= start]
        return [wait for sent, wait in pings if sent <= end] or [wait for _, wait in pings[:1]]


@contextmanager
def pinging(url: str) -> Iterator[Pings]:
    """Ping a server for as long as the block lasts; the pings are complete after it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_ping, args=(url, theirs), daemon=True)
    process.start()
    theirs.close()
    pings = Pings()
    try:
        _receive(ours)
        yield pings
        ours.send("stop")
        pings.sent, pings.waits = _receive(ours)
    finally:
        ours.close()
        process.join(_PATIENCE_SECONDS)


def _receive(pipe: Connection) -> tuple[Sequence[float], Sequence[float]]:
    if not pipe.poll(_PATIENCE_SECONDS):
        raise TimeoutError("the pinging process does not answer")
    sent, waits = pipe.recv()
    return sent, waits


def _ping(url: str, pipe: Connection) -> None:
    sent, waits = array("d"), array("d")
    with redis.Redis.from_url(url) as client:
        client.ping()
        pipe.send((sent, waits))
        # Without the client's own work, which is as slow as its core.
        connection = client.connection_pool.get_connection()
        packed = connection.pack_command("PING")
        is_over = False
        while True:
            began = time.monotonic()
            connection.send_packed_command(packed)
            connection.read_response()
            waits.append(time.monotonic() - began)
            sent.append(began)
            if is_over:  # this ping was sent behind the last phase
                break
            is_over = pipe.poll(_PACE_SECONDS)
        client.connection_pool.release(connection)
    pipe.send((sent, waits))
