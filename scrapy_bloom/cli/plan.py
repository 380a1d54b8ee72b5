"""Compute the memory of a filter, the expected number of missed pages, and the filter's growth.

No server is needed. The default of each parameter is the project's setting.

for example:
  scrapy bloom plan --capacity 1e8 --error-rate 1e-6
  scrapy bloom plan --capacity 2e6 --ttl 604800
  scrapy bloom plan news --error-rate 1e-4
"""

import argparse
from typing import Any

from scrapy.settings import Settings

from scrapy_bloom.cli import console
from scrapy_bloom.cli.target import add_parameter_options, crawler_of
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.sizing import BLOCK_BITS, LIVE_GENERATIONS, LayerSize, error_rate
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.text import as_expected_pages, as_number, as_size, plural

# Memory of a fingerprint in a SET of a million, measured by `python -m benchmarks memory`.
SET_BYTES_PER_MEMBER = 80
# The growth is shown for these multiples of the capacity.
_GROWTH_FACTORS = (2, 5, 10)
# Points at which the error rate of a filling layer is sampled.
_SAMPLES = 200


def make_plan(parameters: FilterParameters, partitions: int = 1) -> dict[str, Any]:
    """Return the plan of a filter at its capacity, as JSON has it; with a TTL, of all layers that live at once.

    The filters of several partitions, each with its share of the requests, are summed.
    `expected_false_positives` sums the error rates that new requests meet while the filter fills.
    """
    sizes = parameters.require_size(partitions).of_partition(partitions).sizes()
    first, capacity, layers = sizes[0], parameters.capacity, LIVE_GENERATIONS if parameters.ttl else 1
    loads = (capacity / partitions / first.blocks * (sample + 0.5) / _SAMPLES for sample in range(_SAMPLES))
    share = sum(error_rate(each, first.hashes)[0] for each in loads) / _SAMPLES
    growth = [_grown(parameters, sizes, each * capacity, partitions) for each in _GROWTH_FACTORS]
    if parameters.ttl:  # the number depends on the spread of the requests over time: an upper bound
        share, growth = parameters.error_rate, []
    memory_bytes = partitions * layers * first.memory_bytes
    return {
        **{name: value for name, value in parameters.arguments().items() if name != "fingerprint"},
        "partitions": partitions,
        "memory_bytes": memory_bytes,
        "bits": partitions * layers * first.blocks * BLOCK_BITS,
        "hashes": first.hashes,
        "shards": partitions * layers * first.shards,
        "layers": layers,
        "bytes_a_request": memory_bytes / capacity,
        "set_memory_bytes": SET_BYTES_PER_MEMBER * capacity,
        "expected_false_positives": capacity * share,
        "growth": growth,
    }


def _grown(parameters: FilterParameters, sizes: list[LayerSize], requests: int, partitions: int) -> dict[str, Any]:
    """Return the size of a filter beyond its capacity, after so many distinct requests."""
    layers: list[LayerSize] = []
    while sum(layer.room for layer in layers) < requests / partitions:
        layers.append(sizes[min(len(layers), len(sizes) - 1)])
    memory_bytes = partitions * sum(layer.memory_bytes for layer in layers)
    full = error_rate(requests / partitions / layers[0].blocks, layers[0].hashes)[0]
    rate = parameters.error_rate if parameters.expansion else full
    return {"requests": requests, "layers": len(layers), "memory_bytes": memory_bytes, "error_rate": rate}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.add_argument("spider", nargs="?", metavar="SPIDER", help="a spider of the project, for its settings")
    add_parameter_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    crawler = crawler_of(options.spider, settings, is_optional=True)
    crawler.addons.load_settings(crawler.settings)
    config = BloomSettings.from_settings(crawler.settings)
    plan = make_plan(FilterParameters.of(config), config.partitions)
    return console.report(options, plan, _text(plan))


def _text(plan: dict[str, Any]) -> str:
    capacity, memory, ttl = plan["capacity"], plan["memory_bytes"], plan["ttl"]
    missed = "if all layers are always full" if ttl else "expected, since a filter errs less until it is full"
    rate = f"{as_number(plan['error_rate'])} of the new requests are mistaken for duplicates when the filter is full"
    rows = [
        ("capacity", plural(capacity, "request") + (f" in {console.duration(ttl)}" if ttl else "")),
        ("error rate", rate),
        ("memory", f"{as_size(memory)}, {plan['bytes_a_request']:.1f} bytes per request"),
        ("a SET", f"{as_size(plan['set_memory_bytes'])}, {plan['set_memory_bytes'] / memory:.1f} times as much"),
        ("missed", f"{as_expected_pages(plan['expected_false_positives'])} of {capacity:,} {missed}"),
        ("bits", f"{plan['bits']:,}; each request sets {plan['hashes']}"),
        ("keys", f"{plural(plan['shards'], 'shard')} in {plural(plan['layers'], 'layer')}, and a hash"),
    ]
    if (partitions := plan["partitions"]) > 1:
        text = f"{as_size(memory // partitions)} in each of {partitions:,}, as room on its node, besides its requests"
        rows.append(("partitions", text))
    if ttl:
        text = "The memory is the sum of all layers that live at once; a request is kept for at most 1.25 TTLs."
        return f"{console.pairs(rows)}\n\n{text}"
    growth = [["if the crawl meets", "layers", "memory", "error rate then"]]
    for step in plan["growth"]:
        sizes = [f"{step['requests']:,}", f"{step['layers']}", as_size(step["memory_bytes"])]
        growth.append([*sizes, as_number(step["error_rate"], 2)])
    return f"{console.pairs(rows)}\n\n{console.table(growth)}"
