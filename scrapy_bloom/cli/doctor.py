"""Find settings and faults that lose pages, with advice. Nothing is changed.

The exit code is 1 if a crawl would lose something; with `--fail-on advice` also if there is advice.
"""

import argparse
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

from redis import exceptions
from scrapy.settings import Settings

from scrapy_bloom.cli import _console, checks
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import UNREADABLE, add_target_options
from scrapy_bloom.cli.checks import Check, Crawl, Finding, Level
from scrapy_bloom.errors import BloomError, RefusedError, UnavailableError
from scrapy_bloom.transport.failures import describe
from scrapy_bloom.transport.server_info import is_cluster

EXAMPLES = """\
examples:
  scrapy bloom doctor news
  scrapy bloom doctor news --json
  scrapy bloom doctor news --fail-on advice
  scrapy bloom doctor --key news:dupefilter --queue news:requests --redis-url redis://localhost:6379
"""
_SIGNS = {Level.OK: "ok  ", Level.ADVICE: "!   ", Level.LOSS: "LOSS"}
# The levels that make the exit code 1, by --fail-on.
_FAILING = {"loss": {Level.LOSS}, "advice": {Level.LOSS, Level.ADVICE}}
_VERDICTS = {
    Level.LOSS: "A crawl would lose pages, fetch them twice or not start: see each LOSS above.",
    Level.ADVICE: "No losses found. See the advice behind each ! above.",
    Level.OK: "No losses found.",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    failing = "the lowest level that makes the exit code 1 (default %(default)s)"
    parser.add_argument("--fail-on", choices=_FAILING, default="loss", help=failing)
    idle = "the time without use after which a filter counts as left over (default %(default)s)"
    parser.add_argument("--idle", type=float, default=3600, metavar="SECONDS", help=idle)
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    crawl = Crawl(options, settings, may_be_refused=True)
    crawl.idle = options.idle
    findings = [*_examine(crawl)]
    server = checks.known(lambda: crawl.server)
    told = [{"check": check, **finding._asdict()} for check, finding in findings]
    lines = [f"{crawl.filter_key or f'the spider {crawl.spider!r}'} on {server or 'an unknown server'}", ""]
    width = max(len(check) for check, _ in findings)
    for check, (level, text, action) in findings:
        lines.append(f"{_SIGNS[level]}  {check:<{width}}  {text}")
        lines += [f"{'':{width + 6}}  -> {action}"] * bool(action)
    levels = {finding.level for _, finding in findings}
    lines += ["", next(verdict for level, verdict in _VERDICTS.items() if level in {*levels, Level.OK})]
    report = {"server": server, "key": crawl.filter_key, "findings": told}
    _console.print_report(options, report, "\n".join(lines))
    return ExitCode.NO if _FAILING[options.fail_on] & levels else ExitCode.DONE


def _examine(crawl: Crawl) -> Iterator[tuple[str, Finding]]:
    """Run all checks; yield each finding with the name of its check."""
    yield from _run(crawl, checks.OF_ANY)
    if crawl.has_spider:
        yield from _run(crawl, checks.OF_SPIDER)
    try:
        crawl.retry(partial(_ping, crawl))
    except UnavailableError:
        raise
    except (BloomError, *UNREADABLE) as error:
        yield "server", checks.refused(describe(error))
        return
    yield from _run(crawl, checks.OF_SERVER)


def _run(crawl: Crawl, table: Iterable[Check]) -> Iterator[tuple[str, Finding]]:
    for check in table:
        try:
            found = crawl.retry(partial(checks.findings_of, check(crawl)))
        except RefusedError as error:
            found = [checks.skipped(error)]
        except UnavailableError as error:
            if not is_cluster(crawl.client):
                raise
            found = [checks.loss(f"not checked: {error.cause}", "run it again when all nodes of the cluster answer")]
        except BloomError as error:
            found = [checks.refused(error)]
        yield from ((checks.name_of(check), each) for each in found)


def _ping(crawl: Crawl) -> None:
    """Ask the server; the client of a cluster has done so. Another check covers the permission."""
    with suppress(exceptions.NoPermissionError):
        if not is_cluster(crawl.client):
            crawl.client.ping()
