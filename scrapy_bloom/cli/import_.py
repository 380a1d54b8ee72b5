"""Move the SET that scrapy-redis left into a filter at its key.

The SET is copied into a filter beside it. Then both change places in one step: the filter has the key, and the SET is
at KEY:set. Every member is checked after that. Stopped at any moment, the import goes on when it is run again.

From the change of places on, workers with the old settings get an error (WRONGTYPE) for each request, which is lost for
the crawl. So the import stops before it, with exit code 1, if the SET grows while it is copied or in the --wait seconds
after that. Stop the workers then, and run it again. --while-crawling changes places in any case.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path

from scrapy import Request
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._console import ShownProgress
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_parameter_options, given_parameters
from scrapy_bloom.cli._target import add_options as add_target
from scrapy_bloom.cli.importing import file_import as import_files
from scrapy_bloom.cli.importing.import_errors import refuse_other_scheme
from scrapy_bloom.cli.importing.import_state import ImportReport
from scrapy_bloom.cli.importing.set_import import SetImport
from scrapy_bloom.errors import RefusedError, UnavailableError
from scrapy_bloom.filter.bloom_filter import CrawlFilter
from scrapy_bloom.filter.parameters import FilterParameters

EXAMPLES = """\
examples:
  scrapy bloom import news --copy-only
  scrapy bloom import news
  scrapy bloom import news --delete-source
  scrapy bloom import --key news:dupefilter --redis-url redis://localhost:6379 --capacity 1e8
  scrapy bloom import news --from-file jobs/news/requests.seen
"""
# A worker that crawls meets a new request within seconds.
_WAIT_SECONDS = 5.0
_MAX_WAIT_SECONDS = 86_400
_GO_ON = "run the same command again to go on"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target(parser)
    parser.add_argument("--from-file", metavar="FILE", type=Path, help="a file of fingerprints, or of URLs, one a line")
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--copy-only", action="store_true", help="stop before the SET and the filter change places")
    change.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help=f"the time without additions after which they change places (default {_WAIT_SECONDS:g})",
    )
    change.add_argument(
        "--while-crawling",
        action="store_true",
        help="let them change places while old workers add, which lose each request from then on",
    )
    parser.add_argument("--delete-source", action="store_true", help="delete the SET when all of it was checked")
    _console.add_options(parser)
    add_parameter_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    target = CrawlTarget.of(options, settings, wait=True)
    parameters = _chosen_parameters(options, target)
    progress = ShownProgress("B" if options.from_file else " members")
    try:
        if options.from_file:
            report = _import_file(options.from_file, target, parameters, progress)
        else:
            report = _import_set(options, target, parameters, progress)
    except KeyboardInterrupt:
        progress.end()
        _console.note(f"stopped: {_GO_ON}")
        return ExitCode.INTERRUPTED
    except (RefusedError, UnavailableError):
        _console.note(f"nothing is lost: {_GO_ON}")
        raise
    finally:
        progress.end()
    if options.json:
        _console.print_json(_as_json(report))
    else:
        print(_text(report, options))
    return ExitCode.DONE if report.is_finished or options.copy_only else ExitCode.NO


def _chosen_parameters(options: argparse.Namespace, target: CrawlTarget) -> FilterParameters:
    """Return the parameters of the crawl's settings, with those that were given for a key."""
    given = given_parameters(options, target.dupefilter.config)
    if given and target.has_spider:
        raise UsageError(f"{', '.join(given)}: the spider's settings decide; set BLOOMFILTER_* there", print_help=False)
    _refuse_options(options)
    return replace(target.parameters, **given)


def _refuse_options(options: argparse.Namespace) -> None:
    """Refuse options that mean nothing together."""
    if options.copy_only and options.delete_source:
        raise UsageError("--copy-only: the SET stays where it is, so that --delete-source waits", print_help=False)
    of_a_set = (options.copy_only, options.while_crawling, options.delete_source, options.wait is not None)
    if options.from_file and any(of_a_set):
        raise UsageError(
            "--from-file: --copy-only, --wait, --while-crawling and --delete-source are for a SET", print_help=False
        )
    if options.wait is not None and not 0 <= options.wait <= _MAX_WAIT_SECONDS:
        raise UsageError(f"--wait = {options.wait:g}: must be 0 to {_MAX_WAIT_SECONDS:,} seconds", print_help=False)


def _import_set(
    options: argparse.Namespace, target: CrawlTarget, parameters: FilterParameters, progress: ShownProgress
) -> ImportReport:
    refuse_other_scheme(parameters.fingerprint)
    retry_timeout = target.dupefilter.config.retry_timeout
    action = SetImport(target.client, target.key, parameters, progress, retry_timeout=retry_timeout)
    seconds = _WAIT_SECONDS if options.wait is None else options.wait
    wait = None if options.while_crawling else seconds
    return action.run(copy_only=options.copy_only, wait=wait, delete_source=options.delete_source)


def _import_file(
    path: Path, target: CrawlTarget, parameters: FilterParameters, progress: ShownProgress
) -> ImportReport:
    import_files.refuse_seen_file(path, parameters.fingerprint)
    config = target.dupefilter.config
    return import_files.import_file(
        path,
        lambda: CrawlFilter.with_parameters(
            target.client, target.key, parameters, cache_size=config.cache_size, retry_timeout=config.retry_timeout
        ),
        lambda url: target.dupefilter.fingerprint_of(Request(url)),
        progress,
    )


def _as_json(report: ImportReport) -> dict[str, object]:
    named = asdict(report)
    del named["was_finished"]
    return named


def _text(report: ImportReport, options: argparse.Namespace) -> str:
    if options.from_file:
        return (
            f"{report.members:,} lines of {report.source} are in the filter at {report.key!r}: {report.added:,} were "
            f"new, {report.already_known:,} were known ({_pace(report)})."
        )
    if not report.is_finished:
        copied = f"{report.members:,} members of the SET at {report.source!r} are copied ({_pace(report)})."
        without = " without --copy-only" if options.copy_only else ""
        return (
            f"{copied}{'' if options.copy_only else _why_not(report)} Stop the workers, and run this again{without}: "
            "it catches up and puts the filter in the SET's place."
        )
    if report.was_finished:
        done = (
            f"All {report.members:,} members of the SET are in the filter at {report.key!r} already ({_pace(report)})."
        )
    else:
        done = (
            f"All {report.members:,} members are in the filter at {report.key!r}, and each was checked: "
            f"{report.added:,} copied, {report.caught_up:,} caught up ({_pace(report)})."
        )
    return f"{done} {_what_next(report)}"


def _why_not(report: ImportReport) -> str:
    return (
        f"\nThe SET has grown by {report.added_meanwhile:,} since this began: workers with the old settings still add "
        "to it, and would lose each request from the change of places on, so that it stays in its place."
    )


def _what_next(report: ImportReport) -> str:
    source = (
        "The SET is deleted."
        if report.deleted_source
        else (f"The SET is at {report.source!r} until you delete it by --delete-source, or by UNLINK.")
    )
    return f"{source}\nStart the workers with scrapy-bloom: with its add-on, or its classes, and these settings."


def _pace(report: ImportReport) -> str:
    return f"{report.seconds:,.1f} s, {report.members_a_second:,.0f} a second"
