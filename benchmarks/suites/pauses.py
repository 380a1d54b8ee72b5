"""The pauses of other clients while a large filter is created, fills, grows and is cleared.

The filter takes 400 MB: 10^8 items at 1e-6. A client in a process of its own pings the server twice a millisecond. The
other process adds, in batches of 100. For the growth it fills a small filter whose next layer has the large size, and
whose strings are allocated before the layer is needed. That phase begins at 85 % of the small layer's capacity.

Two processes and the server share two cores, so pings also wait for a core. The first two rows show those waits
without a filter: the pinging client alone, and beside a client with batches of 100 SADD back to back.
"""

import time
from collections.abc import Iterator, Mapping
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

REPETITIONS = 3
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
    """The moments of a phase's begins and ends, and the seconds of the other client's calls inside."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """Note the time of the block."""
        began = time.monotonic()
        yield
        self.spans.append((began, time.monotonic()))

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Note the seconds of the block, a call."""
        began = time.monotonic()
        yield
        self.calls.append(time.monotonic() - began)


def run(_: Asked) -> list[Plot]:
    """Measure on each available server."""
    for kind in available():
        phases = {name: Phase() for name in PHASES}
        with running(kind) as server, pinging(server.url) as pings, server.client() as client:
            for number in range(REPETITIONS):
                _without_filter(phases, client)
                _create_fill_clear(phases, Place(server.url, KEY, FilterParameters(ITEMS, ERROR_RATE)))
                small = FilterParameters(ITEMS // TIMES_LARGER, ERROR_RATE, TIMES_LARGER)
                _grow(phases[GROWS], Place(server.url, KEY, small))
                report.say(f"  {number + 1} of {REPETITIONS}")
        _print(server.name, phases, pings)
    return []


def _without_filter(phases: Mapping[str, Phase], client: redis.Redis) -> None:
    with phases[IDLE].lasting():
        time.sleep(SECONDS)
    with phases[BUSY].lasting():
        for batch in _until_over():
            with client.pipeline(transaction=False) as pipe:
                for item in batch:
                    pipe.sadd(KEY, item)
                with phases[BUSY].calling():
                    pipe.execute()
    client.unlink(KEY)


def _until_over() -> Iterator[list[bytes]]:
    """Yield batches of items for as long as a phase lasts."""
    end = time.monotonic() + SECONDS
    for number in count():
        if time.monotonic() > end:
            return
        yield counters(number * BATCH, (number + 1) * BATCH)


def _create_fill_clear(phases: Mapping[str, Phase], place: Place) -> None:
    bloom = place.open()
    with phases[CREATES].lasting(), phases[CREATES].calling():
        bloom.add("first")
    with phases[FILLS].lasting():
        for batch in _until_over():
            with phases[FILLS].calling():
                bloom.add_many(batch)
    with phases[CLEARS].lasting(), phases[CLEARS].calling():
        bloom.clear()


def _grow(phase: Phase, place: Place) -> None:
    capacity, bloom = place.parameters.capacity, place.open()
    begin = capacity * 85 // 100 // BATCH * BATCH
    for start in range(0, begin, BATCH):
        bloom.add_many(counters(start, start + BATCH))
    with phase.lasting():
        for start in range(begin, capacity * 110 // 100, BATCH):
            batch = counters(start, start + BATCH)
            with phase.calling():
                bloom.add_many(batch)
    layers = bloom.info().layers
    bloom.clear()
    if layers != 2:
        raise RuntimeError(f"{GROWS}: {layers} layers instead of 2")


def _print(server: str, phases: Mapping[str, Phase], pings: Pings) -> None:
    waits = {name: [wait for span in each.spans for wait in pings.between(*span)] for name, each in phases.items()}
    longest = {name: max(each) * 1e3 for name, each in waits.items()}
    rows = [
        (
            name,
            f"{len(waits[name]):,}",
            f"{sorted(waits[name])[len(waits[name]) // 2] * 1e3:.2f}",
            f"{longest[name]:.1f}",
            f"{len(phase.calls):,}",
            f"{max(phase.calls) * 1e3:.1f}" if phase.calls else "-",
        )
        for name, phase in phases.items()
    ]
    report.table(
        f"Waits in ms while something happens; {server}, {REPETITIONS} times. Calls are those of the other client: an "
        f"addition of {BATCH} items, or a whole creation or deletion.",
        ("while", "pings", "median", "longest", "calls", "longest call"),
        rows,
    )
    for name in (CREATES, GROWS):
        report.target(f"{server}: longest ping in ms while {name},", longest[name], MOST_MILLISECONDS)
    slowest = max(phases[GROWS].calls) * 1e3
    report.target(f"{server}: longest addition in ms while {GROWS},", slowest, MOST_MILLISECONDS)
