"""Look for what would lose pages in a crawl, and say what to do about it.

The exit code is 1 if a crawl would lose something, or with `--fail-on advice` if there is anything to do. Nothing is
changed.
"""

import argparse
from collections import Counter
from dataclasses import asdict

from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget
from scrapy_bloom.cli._target import add_options as add_target
from scrapy_bloom.cli.checks.case import Case, examine
from scrapy_bloom.cli.checks.findings import Finding, Level
from scrapy_bloom.cli.checks.leftovers import IDLE_SECONDS

EXAMPLES = """\
examples:
  scrapy bloom doctor news
  scrapy bloom doctor news --json
  scrapy bloom doctor news --fail-on advice
  scrapy bloom doctor --key news:dupefilter --queue news:requests --redis-url redis://localhost:6379
"""

_SIGNS = {Level.OK: "ok  ", Level.ADVICE: "!   ", Level.LOSS: "LOSS"}
# The levels that make the exit code 1, by the least of them.
_FAILING = {"loss": {Level.LOSS}, "advice": {Level.LOSS, Level.ADVICE}}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target(parser)
    parser.add_argument(
        "--fail-on",
        choices=_FAILING,
        default="loss",
        help="the least finding that makes the exit code 1 (default %(default)s)",
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=IDLE_SECONDS,
        metavar="SECONDS",
        help="look for leftover filters that were not used for so long (default %(default)s)",
    )
    _console.add_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    case = Case(CrawlTarget.of(options, settings, may_be_refused=True), options.idle)
    findings = list(examine(case))
    if options.json:
        told = {"server": case.address, "key": case.key, "findings": [asdict(finding) for finding in findings]}
        _console.print_json(told)
    else:
        print(_told(case, findings))
    return ExitCode.NO if _FAILING[options.fail_on] & {finding.level for finding in findings} else ExitCode.DONE


def _told(case: Case, findings: list[Finding]) -> str:
    subject = case.key or f"the spider {case.target.spider!r}"
    lines = [f"{subject} on {case.address or 'a server that is not known'}", ""]
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        lines.append(f"{_SIGNS[finding.level]}  {finding.check:<{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':{width + 6}}  -> {finding.advice}")
    count = Counter(finding.level for finding in findings)
    return "\n".join([*lines, "", _verdict(count[Level.LOSS], count[Level.ADVICE])])


def _verdict(losses: int, worth_doing: int) -> str:
    if losses:
        return "A crawl would lose pages, fetch them twice or not start, as LOSS says above."
    return f"Nothing here loses pages.{' Look at what has a ! all the same.' if worth_doing else ''}"
