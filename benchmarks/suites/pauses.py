"""The pauses of other clients while a large filter is created, fills, grows and is cleared.

The filter takes 400 MB: 10^8 items at 1e-6. A client in a process of its own pings the server twice a millisecond. The
other process adds, in batches of 100. For the growth it fills a small filter whose next layer has the large size, and
whose strings are allocated before the layer is needed. That phase begins at 85 % of the small layer's capacity.

Two processes and the server share two cores, so pings also wait for a core. The first two rows show those waits
without a filter: the pinging client alone, and beside a client with batches of 100 SADD back to back.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import redis

from benchmarks.harness import report
from benchmarks.harness.filling import Place, counters
from benchmarks.harness.options import Asked
from benchmarks.harness.pinging import Pings, pinging
from benchmarks.harness.plots import Plot
from devtools.servers import available, running
from scrapy_bloom.filter.parameters import FilterParameters

REPETITIONS = 5
ITEMS = 100_000_000
# The small filter's next layer is so many times as large.
TIMES_LARGER = 1_000
ERROR_RATE = 1e-6
SECONDS = 1.0
BATCH = 100
KEY = "bench:pauses"
MOST_MILLISECONDS = 50.0

IDLE, BUSY = "no other client", "another client adds to a SET"
CREATES, FILLS, CLEARS = "the filter is created", "it fills", "it is cleared"
GROWS = "it grows"
PHASES = (IDLE, BUSY, CREATES, FILLS, CLEARS, GROWS)


@dataclass
class Phase:
    """The waits of both clients in a phase, over all repetitions: seconds of pings, and of the other client's calls."""

    pings: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)


class Times:
    """The times at which phases began and ended, and the seconds of the calls inside."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, float, float]] = []
        self.calls: dict[str, list[float]] = {phase: [] for phase in PHASES}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note the time of the block."""
        began = time.monotonic()
        yield
        self.spans.append((name, began, time.monotonic()))

    def call(self, name: str, call: Callable[[], object]) -> None:
        """Note the time of a call."""
        began = time.monotonic()
        call()
        self.calls[name].append(time.monotonic() - began)


def run(_: Asked) -> list[Plot]:
    """Measure on each available server."""
    for kind in available():
        with running(kind) as server:
            found = _measure(server.url, REPETITIONS, ITEMS)
            _print(server.name, found)
    return []


def _measure(url: str, repetitions: int, items: int) -> dict[str, Phase]:
    times = Times()
    with pinging(url) as pings, redis.Redis.from_url(url) as client:
        for number in range(repetitions):
            _without_filter(times, client)
            _create_fill_clear(times, Place(url, KEY, FilterParameters(items, ERROR_RATE)))
            small = Place(url, KEY, FilterParameters(items // TIMES_LARGER, ERROR_RATE, TIMES_LARGER))
            _grow(times, small)
            report.say(f"  {number + 1} of {repetitions}")
    return by_phase(times, pings)


def by_phase(times: Times, pings: Pings) -> dict[str, Phase]:
    """Return the pings and the calls of each phase."""
    found = {name: Phase(calls=calls) for name, calls in times.calls.items()}
    for name, start, end in times.spans:
        found[name].pings += pings.between(start, end)
    return found


def _without_filter(times: Times, client: redis.Redis) -> None:
    with times.phase(IDLE):
        time.sleep(SECONDS)
    with times.phase(BUSY):
        for number in _until_over():
            with client.pipeline(transaction=False) as pipe:
                for item in counters(number * BATCH, (number + 1) * BATCH):
                    pipe.sadd(KEY, item)
                times.call(BUSY, pipe.execute)
    client.unlink(KEY)


def _until_over() -> Iterator[int]:
    end = time.monotonic() + SECONDS
    for number in count():
        if time.monotonic() > end:
            return
        yield number


def _create_fill_clear(times: Times, place: Place) -> None:
    bloom = place.open()
    with times.phase(CREATES):
        times.call(CREATES, lambda: bloom.add("first"))
    with times.phase(FILLS):
        for number in _until_over():
            batch = counters(number * BATCH, (number + 1) * BATCH)
            times.call(FILLS, lambda batch=batch: bloom.add_many(batch))  # type: ignore[misc]
    with times.phase(CLEARS):
        times.call(CLEARS, bloom.clear)


def _grow(times: Times, place: Place) -> None:
    capacity, bloom = place.parameters.capacity, place.open()
    begin = capacity * 85 // 100 // BATCH * BATCH
    for start in range(0, begin, BATCH):
        bloom.add_many(counters(start, start + BATCH))
    with times.phase(GROWS):
        for start in range(begin, capacity * 110 // 100, BATCH):
            batch = counters(start, start + BATCH)
            times.call(GROWS, lambda batch=batch: bloom.add_many(batch))  # type: ignore[misc]
    layers = bloom.info().layers
    bloom.clear()
    if layers != 2:
        raise RuntimeError(f"{GROWS}: {layers} layers instead of 2")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _print(server: str, found: Mapping[str, Phase]) -> None:
    rows = [
        (
            name,
            f"{len(phase.pings):,}",
            *(f"{percentile(phase.pings, share) * 1e3:.2f}" for share in (0.5, 0.999)),
            f"{max(phase.pings) * 1e3:.1f}",
            f"{len(phase.calls):,}",
            *(
                (f"{percentile(phase.calls, 0.999) * 1e3:.1f}", f"{max(phase.calls) * 1e3:.1f}")
                if phase.calls
                else ("-", "-")
            ),
        )
        for name, phase in found.items()
    ]
    report.table(
        f"Waits in ms while something happens; {server}. Calls are those of the other client: an addition of {BATCH} "
        "items, or a whole creation or deletion.",
        (
            *("while", "pings", "median", "99.9th percentile", "longest"),
            *("calls", "99.9th percentile of calls", "longest call"),
        ),
        rows,
    )
    for name in (CREATES, GROWS):
        longest = max(found[name].pings) * 1e3
        report.target(f"{server}: longest ping in ms while {name},", longest, MOST_MILLISECONDS)
    report.target(f"{server}: longest addition in ms while {GROWS},", max(found[GROWS].calls) * 1e3, MOST_MILLISECONDS)
