"""Show how much memory a filter takes beside a SET, which pages it may cost, and how it would grow.

It asks no server. What is not given comes from the settings of the project, or has its default.
"""

import argparse
from dataclasses import asdict, replace

from scrapy.settings import Settings

from scrapy_bloom._format import as_expected_pages, as_size
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import add_parameter_options, crawl_settings, given_parameters
from scrapy_bloom.cli.planning import COMPARED_ERROR_RATES, Plan, make_plan
from scrapy_bloom.settings import BloomSettings

EXAMPLES = """\
examples:
  scrapy bloom plan --capacity 1e8 --error-rate 1e-6
  scrapy bloom plan --capacity 2e6 --ttl 604800
  scrapy bloom plan news --compare
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.add_argument("spider", nargs="?", metavar="SPIDER", help="a spider of the project, for its settings")
    add_parameter_options(parser)
    parser.add_argument("--compare", action="store_true", help="compare error rates from 1e-2 to 1e-9")
    _console.add_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    defaults = BloomSettings.from_settings(crawl_settings(options.spider, settings))
    parameters = replace(defaults, **given_parameters(options, defaults)).parameters()
    plan = make_plan(parameters)
    if options.compare:
        plans = [make_plan(replace(parameters, error_rate=rate)) for rate in COMPARED_ERROR_RATES]
        if options.json:
            _console.print_json({"capacity": plan.capacity, "plans": [asdict(each) for each in plans]})
        else:
            print(_compared(plans))
    elif options.json:
        _console.print_json(asdict(plan))
    else:
        print(_told(plan))
    return ExitCode.DONE


def _told(plan: Plan) -> str:
    times = plan.set_memory_bytes / plan.memory_bytes
    rows = [
        ("capacity", f"{plan.capacity:,} requests" + (f" in {_console.duration(plan.ttl)}" if plan.ttl else "")),
        ("error rate", f"{plan.error_rate:g} of the new ones are taken for seen, at most"),
        ("memory", f"{as_size(plan.memory_bytes)}, {plan.bytes_a_request:.1f} bytes a request"),
        ("a SET", f"{as_size(plan.set_memory_bytes)}, {times:.1f} times as much"),
        ("missed", f"{as_expected_pages(plan.expected_false_positives)} of {plan.capacity:,}, {_bound(plan)}"),
        ("bits", f"{plan.bits:,}, of which a request sets {plan.hashes}"),
        ("keys", f"{plan.shards} strings in {plan.layers} layer(s), and a hash"),
    ]
    told = _console.pairs(rows)
    if plan.ttl:
        return f"{told}\n\nThe memory is that of all layers which live at once: a request is kept for 1.25 TTL at most."
    head = ["if the crawl meets", "layers", "memory", "error rate"]
    rows_of_growth = [
        [f"{growth.requests:,}", f"{growth.layers}", as_size(growth.memory_bytes), f"{growth.error_rate:.2g}"]
        for growth in plan.growth
    ]
    return f"{told}\n\n{_console.table([head, *rows_of_growth])}"


def _bound(plan: Plan) -> str:
    """Return how the number of missed pages is meant: with a TTL it depends on how requests are spread over time."""
    return "at most" if plan.ttl else "expected"


def _compared(plans: list[Plan]) -> str:
    head = ["error rate", "memory", "bytes a request", "a SET, times", "missed, expected"]
    rows = [
        [
            f"{plan.error_rate:.0e}",
            as_size(plan.memory_bytes),
            f"{plan.bytes_a_request:.2f}",
            f"{plan.set_memory_bytes / plan.memory_bytes:.1f}",
            as_expected_pages(plan.expected_false_positives),
        ]
        for plan in plans
    ]
    return f"for {plans[0].capacity:,} requests:\n\n{_console.table([head, *rows])}"
