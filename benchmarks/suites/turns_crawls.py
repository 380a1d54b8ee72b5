"""Whole crawls with this package and with the one before queue and filter changed in one step, in turns.

One worker crawls the made-up site, of 500 pages, and each `--html` directory, with Redis on this machine and behind
pings of 1 and 5 ms. CPU is that of the worker from its start on, and of the server by INFO.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.harness import report
from benchmarks.harness.interleaved import ratio, rotated
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.subjects.before import BEFORE, NOW, packages
from benchmarks.subjects.whole_crawl import OUR_SCHEDULER, OURS, crawl, name_of, serving
from benchmarks.suites.distance import MADE_UP
from devtools.proxy.delay import delaying
from devtools.servers import Address, available, cpu_seconds, running

ROUNDS = 5
MILLISECONDS = (0, 1, 5)
"""The additional time of a ping, compared with this machine."""
COLUMNS = ("crawl", "ping, ms", "seconds", "CPU of the worker", "CPU of the server", "round trips")
MOST_TIMES = 1.0


def run(asked: Asked) -> list[Plot]:
    """Crawl each site."""
    sites = {"made-up site": MADE_UP, **{name_of(path): ("--directory", str(path)) for path in asked.html}}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scrapy-bloom-bench-")))
        server, paths = stack.enter_context(running(available()[0])), stack.enter_context(packages())
        client = stack.enter_context(server.client())
        addresses = {0: server.address}
        for milliseconds in MILLISECONDS[1:]:
            proxy = stack.enter_context(delaying(server.port, milliseconds / 2e3))
            proxy.calibrate(server.port, milliseconds / 2e3)
            addresses[milliseconds] = Address(proxy.port)
        for site, options in sites.items():
            rows, worst = [], 0.0
            url = stack.enter_context(serving(*options))
            for kind in (OUR_SCHEDULER, OURS):
                for milliseconds, address in addresses.items():
                    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in paths}
                    for turn in range(ROUNDS):
                        for name in rotated(list(paths), turn):
                            used = cpu_seconds(client)
                            one = crawl(kind, url, 1, address, scratch, path=paths[name])
                            used = cpu_seconds(client) - used
                            found[name].append((one.seconds, one.cpu_seconds, used, one.round_trips))
                    report.say(f"  {site}, {kind}, {milliseconds} ms")
                    costs = {name: list(zip(*each, strict=True)) for name, each in found.items()}
                    ratios = [ratio(*pair) for pair in zip(costs[NOW], costs[BEFORE], strict=True)]
                    worst = max(worst, ratios[0])
                    cells = [
                        f"{times:.2f} ({median(before):,.4g}, {median(now):,.4g})"
                        for times, before, now in zip(ratios, costs[BEFORE], costs[NOW], strict=True)
                    ]
                    rows.append((kind, f"{milliseconds}", *cells))
            title = f"{site}: now to before, and medians of both in {ROUNDS} rounds, in seconds. {server.name}."
            report.table(title, COLUMNS, rows)
            report.target(f"{site}: time of a crawl, times before,", worst, MOST_TIMES)
    return []
