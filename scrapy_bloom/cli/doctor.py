"""Find settings and faults that lose pages, with advice. Nothing is changed.

The exit code is 1 if a crawl would lose something; with `--fail-on advice` also if there is advice.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

from redis import exceptions
from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.cli.checks import configuration, contents, leftovers, server
from scrapy_bloom.cli.checks.case import Case, Finding, Level, loss, skipped
from scrapy_bloom.errors import RefusedError, UnavailableError
from scrapy_bloom.transport.failures import describe
from scrapy_bloom.transport.server_info import is_cluster

EXAMPLES = """\
examples:
  scrapy bloom doctor news
  scrapy bloom doctor news --json
  scrapy bloom doctor news --fail-on advice
  scrapy bloom doctor --key news:dupefilter --queue news:requests --redis-url redis://localhost:6379
"""

Check = Callable[[Case], Iterable[Finding]]
# Checks that need no server.
SETTINGS_CHECKS: tuple[Check, ...] = (
    configuration.check_versions,
    configuration.check_settings,
    configuration.check_classes,
    configuration.check_values,
)
# Checks of the server and its data, by the name under which a denied check is reported.
SERVER_CHECKS: dict[str, Check] = {
    "server": server.check_nodes,
    "slots": contents.check_slots,
    "filter": contents.check_filter,
    "capacity": configuration.check_parameters,
    "queue": contents.check_queues,
    "leases": leftovers.check_leases,
    "start URLs": contents.check_start_urls,
    "permissions": server.check_permissions,
    "leftover filters": leftovers.check_filters,
}
_SIGNS = {Level.OK: "ok  ", Level.ADVICE: "!   ", Level.LOSS: "LOSS"}
# The levels that make the exit code 1, by --fail-on.
_FAILING = {"loss": {Level.LOSS}, "advice": {Level.LOSS, Level.ADVICE}}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument(
        "--fail-on",
        choices=_FAILING,
        default="loss",
        help="the lowest level that makes the exit code 1 (default %(default)s)",
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=leftovers.IDLE_SECONDS,
        metavar="SECONDS",
        help="the time without use after which a filter counts as left over (default %(default)s)",
    )
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    case = Case(CrawlTarget.of(options, settings, may_be_refused=True), options.idle)
    findings = list(_examine(case))
    servers = {"server": case.address, **({"queue_server": case.queue_address} if case.target.is_separate else {})}
    report = {**servers, "key": case.key, "findings": [asdict(finding) for finding in findings]}
    _console.print_report(options, report, _text(case, findings))
    return ExitCode.NO if _FAILING[options.fail_on] & {finding.level for finding in findings} else ExitCode.DONE


def _examine(case: Case) -> Iterator[Finding]:
    """Run all checks."""
    for check in SETTINGS_CHECKS:
        yield from check(case)
    if case.refusal is not None:
        yield case.refusal
    else:
        for name, check in SERVER_CHECKS.items():
            try:
                yield from check(case)
            except (exceptions.ResponseError, RefusedError) as error:
                yield skipped(name, error)
            except (exceptions.ConnectionError, exceptions.TimeoutError, UnavailableError) as error:
                if not any(map(is_cluster, case.target.clients.values())):
                    raise
                text = f"not checked: {error.cause if isinstance(error, UnavailableError) else describe(error)}"
                yield loss(name, text, "run it again when all nodes of the cluster answer")
    yield from leftovers.check_files(case)


def _text(case: Case, findings: list[Finding]) -> str:
    subject = case.key or f"the spider {case.target.spider!r}"
    title = f"{subject} on {case.address or 'an unknown server'}"
    if case.target.is_separate:
        title += f"; the queue on {case.queue_address or 'an unknown server'}"
    lines = [title, ""]
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        lines.append(f"{_SIGNS[finding.level]}  {finding.check:<{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':{width + 6}}  -> {finding.advice}")
    count = Counter(finding.level for finding in findings)
    verdict = "No losses found."
    if count[Level.LOSS]:
        verdict = "A crawl would lose pages, fetch them twice or not start: see each LOSS above."
    elif count[Level.ADVICE]:
        verdict = "No losses found. See the advice behind each ! above."
    return "\n".join([*lines, "", verdict])
