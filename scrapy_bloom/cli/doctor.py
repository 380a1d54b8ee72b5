"""Find settings and faults that lose pages, with advice. Nothing is changed.

The exit code is 1 if a crawl would lose something; with `--fail-on advice` also if there is advice.

for example:
  scrapy bloom doctor news
  scrapy bloom doctor news --json
  scrapy bloom doctor news --fail-on advice
  scrapy bloom doctor --key news:dupefilter --queue news:requests --redis-url redis://localhost:6379
"""

import argparse
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

from redis import exceptions
from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._examined import Crawl, Finding, Level, findings_of, known, loss, refused, skipped
from scrapy_bloom.cli._target import UNREADABLE, add_target_options
from scrapy_bloom.cli.checks import OF_ANY, OF_SERVER, OF_SPIDER, Check, name_of
from scrapy_bloom.errors import BloomError, RefusedError, UnavailableError
from scrapy_bloom.transport.failures import describe
from scrapy_bloom.transport.server_info import is_cluster

# The sign and the verdict of each level.
_SIGNS = {Level.OK: "ok  ", Level.ADVICE: "!   ", Level.LOSS: "LOSS"}
_VERDICTS = {
    Level.OK: "No losses found.",
    Level.ADVICE: "No losses found. See the advice behind each ! above.",
    Level.LOSS: "A crawl would lose pages, fetch them twice or not start: see each LOSS above.",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    failing = "the lowest level that makes the exit code 1 (default %(default)s)"
    parser.add_argument("--fail-on", choices=("loss", "advice"), default="loss", help=failing)
    idle = "the time without use after which a filter counts as left over (default %(default)s)"
    parser.add_argument("--idle", type=float, default=3600, metavar="SECONDS", help=idle)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    crawl = Crawl(options, settings)
    findings = [*_examine(crawl)]
    server, weights = known(lambda: crawl.server), [*Level]
    worst = max((finding.level for _, finding in findings), key=weights.index)
    lines = [f"{crawl.filter_key or f'the spider {crawl.spider.name!r}'} on {server or 'an unknown server'}", ""]
    width = max(len(check) for check, _ in findings)
    for check, (level, text, action) in findings:
        lines.append(f"{_SIGNS[level]}  {check:<{width}}  {text}")
        lines += [f"{'':{width + 6}}  -> {action}"] * bool(action)
    lines += ["", _VERDICTS[worst]]
    told = [{"check": check, **finding._asdict()} for check, finding in findings]
    report = {"server": server, "key": crawl.filter_key, "findings": told}
    fails = weights.index(worst) >= weights.index(options.fail_on)
    return _console.report(options, report, "\n".join(lines), answer=not fails)


def _examine(crawl: Crawl) -> Iterator[tuple[str, Finding]]:
    """Run all checks; yield each finding with the name of its check."""
    yield from _run(crawl, OF_ANY)
    if crawl.has_spider:
        yield from _run(crawl, OF_SPIDER)
    try:
        crawl.retry(partial(_ping, crawl))
    except UnavailableError:
        raise
    except (BloomError, *UNREADABLE) as error:
        yield "server", refused(describe(error))
    else:
        yield from _run(crawl, OF_SERVER)


def _run(crawl: Crawl, table: Iterable[Check]) -> Iterator[tuple[str, Finding]]:
    for check in table:
        try:
            found = crawl.retry(partial(findings_of, check(crawl)))
        except RefusedError as error:
            found = [skipped(error)]
        except UnavailableError as error:
            if not is_cluster(crawl.client):
                raise
            found = [loss(f"not checked: {error.cause}", "run it again when all nodes of the cluster answer")]
        except BloomError as error:
            found = [refused(error)]
        yield from ((name_of(check), each) for each in found)


def _ping(crawl: Crawl) -> None:
    """Ask the server; the client of a cluster has done so. Another check covers the permission."""
    with suppress(exceptions.NoPermissionError):
        if not is_cluster(crawl.client):
            crawl.client.ping()
