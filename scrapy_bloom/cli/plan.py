"""Compute the memory of a filter, the expected number of missed pages, and the filter's growth.

No server is needed. The default of each parameter is the project's setting.
"""

import argparse
from dataclasses import asdict, replace

from scrapy.settings import Settings

from scrapy_bloom._format import as_expected_pages, as_number, as_size, plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import add_parameter_options, crawl_settings, with_options
from scrapy_bloom.cli.planning import COMPARED_ERROR_RATES, Plan, make_plan
from scrapy_bloom.settings import BloomSettings

EXAMPLES = """\
examples:
  scrapy bloom plan --capacity 1e8 --error-rate 1e-6
  scrapy bloom plan --capacity 2e6 --ttl 604800
  scrapy bloom plan news --compare
"""
# Below this error rate the price of blocks rises.
_LEAST_CHEAP_RATE = 1e-9


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.add_argument("spider", nargs="?", metavar="SPIDER", help="a spider of the project, for its settings")
    add_parameter_options(parser)
    parser.add_argument("--compare", action="store_true", help="compare error rates from 1e-2 to 1e-9")
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    own = BloomSettings.from_settings(crawl_settings(options.spider, settings))
    parameters = with_options(own.parameters(), options)
    if options.compare:
        plans = [make_plan(replace(parameters, error_rate=rate)) for rate in COMPARED_ERROR_RATES]
        report = {"capacity": parameters.capacity, "plans": [asdict(plan) for plan in plans]}
        _console.print_report(options, report, _comparison(plans))
    else:
        plan = make_plan(parameters)
        _console.print_report(options, asdict(plan), _text(plan))
    return ExitCode.DONE


def _text(plan: Plan) -> str:
    window = f" in {_console.duration(plan.ttl)}" if plan.ttl else ""
    # With a TTL the number depends on the spread of the requests over time.
    missed = "if all layers are always full" if plan.ttl else "expected, since a filter errs less until it is full"
    rows = [
        ("capacity", plural(plan.capacity, "request") + window),
        ("error rate", f"{as_number(plan.error_rate)} of the new requests are taken for seen when the filter is full"),
        ("memory", f"{as_size(plan.memory_bytes)}, {plan.bytes_a_request:.1f} bytes per request"),
        ("a SET", f"{as_size(plan.set_memory_bytes)}, {plan.set_memory_bytes / plan.memory_bytes:.1f} times as much"),
        ("missed", f"{as_expected_pages(plan.expected_false_positives)} of {plan.capacity:,} {missed}"),
        ("bits", f"{plan.bits:,}; each request sets {plan.hashes}"),
        ("keys", f"{plural(plan.shards, 'shard')} in {plural(plan.layers, 'layer')}, and a hash"),
    ]
    if plan.error_rate < _LEAST_CHEAP_RATE and not plan.ttl:
        rows.append(("price", f"{plan.price:.1f} times the least bits possible: it rises below an error rate of 1e-9"))
    text = _console.pairs(rows)
    if plan.ttl:
        return (
            f"{text}\n\nThe memory is the sum of all layers that live at once; a request is kept for at most 1.25 TTLs."
        )
    head = ["if the crawl meets", "layers", "memory", "error rate then"]
    rows_of_growth = [
        [f"{step.requests:,}", f"{step.layers}", as_size(step.memory_bytes), as_number(step.error_rate, 2)]
        for step in plan.growth
    ]
    return f"{text}\n\n{_console.table([head, *rows_of_growth])}"


def _comparison(plans: list[Plan]) -> str:
    head = ["error rate", "memory", "bytes per request", "SET / filter", "missed, expected"]
    rows = [
        [
            as_number(plan.error_rate),
            as_size(plan.memory_bytes),
            f"{plan.bytes_a_request:.2f}",
            f"{plan.set_memory_bytes / plan.memory_bytes:.1f}",
            as_expected_pages(plan.expected_false_positives),
        ]
        for plan in plans
    ]
    return f"for {plural(plans[0].capacity, 'request')}:\n\n{_console.table([head, *rows])}"
