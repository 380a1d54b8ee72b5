"""Move the SET of scrapy-redis's dupefilter into a filter at the same key.

The SET is copied into a staging filter. Then both are swapped in one step: the filter gets the key, and the SET moves
to KEY:set. After that every member is checked. An interrupted import resumes when you run it again.

After the swap, each request of a worker with the old settings fails (WRONGTYPE) and is lost to its crawl. Therefore the
import stops before the swap, with exit code 1, if the SET grows while it is copied or in the --wait seconds after that.
In this case stop the workers, and run it again. With --while-crawling it swaps even then.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path

from scrapy import Request
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._console import ConsoleProgress
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_parameter_options, add_target_options, given_parameters
from scrapy_bloom.cli.importing import file_import
from scrapy_bloom.cli.importing.import_errors import require_no_set, require_sets_scheme
from scrapy_bloom.cli.importing.import_state import ImportReport
from scrapy_bloom.cli.importing.set_import import SetImport
from scrapy_bloom.errors import RefusedError, UnavailableError
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.transport.retry import retry_until

EXAMPLES = """\
examples:
  scrapy bloom import news --copy-only
  scrapy bloom import news
  scrapy bloom import news --delete-source
  scrapy bloom import --key news:dupefilter --redis-url redis://localhost:6379 --capacity 1e8
  scrapy bloom import news --from-file jobs/news/requests.seen
"""
# A crawling worker meets a new request within seconds.
_WAIT_SECONDS = 5.0
_MAX_WAIT_SECONDS = 86_400
_RESUME = "run the same command again to resume"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument(
        "--from-file",
        metavar="FILE",
        type=Path,
        help="a file of fingerprints or URLs, one per line, or Scrapy's requests.seen",
    )
    swap = parser.add_mutually_exclusive_group()
    swap.add_argument("--copy-only", action="store_true", help="stop before the swap")
    swap.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help=f"swap after this time without additions to the SET (default {_WAIT_SECONDS:g})",
    )
    swap.add_argument(
        "--while-crawling",
        action="store_true",
        help="swap although old workers still add to the SET; from then on they lose every request",
    )
    parser.add_argument("--delete-source", action="store_true", help="delete the SET after the check")
    _console.add_json_option(parser)
    add_parameter_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target = CrawlTarget.of(options, settings, wait=True)
    given = given_parameters(options, target.dupefilter.config)
    if given and target.has_spider:
        raise UsageError(f"{', '.join(given)}: set BLOOMFILTER_* in the spider's settings instead", print_help=False)
    _require_compatible(options)
    parameters = replace(target.parameters, **given)
    progress = ConsoleProgress("B" if options.from_file else " members")
    try:
        if options.from_file:
            report = _import_file(options.from_file, target, parameters, progress)
        else:
            report = _import_set(options, target, parameters, progress)
    except KeyboardInterrupt:
        progress.end()
        _console.note(f"stopped: {_RESUME}")
        return ExitCode.INTERRUPTED
    except (RefusedError, UnavailableError):
        _console.note(f"nothing is lost: {_RESUME}")
        raise
    finally:
        progress.end()
    named = asdict(report)
    del named["was_finished"]
    _console.print_report(options, named, _text(report, options))
    return ExitCode.DONE if report.is_finished or options.copy_only else ExitCode.NO


def _require_compatible(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other."""
    if options.copy_only and options.delete_source:
        raise UsageError("--copy-only: the SET stays, so omit --delete-source", print_help=False)
    set_options = (options.copy_only, options.while_crawling, options.delete_source, options.wait is not None)
    if options.from_file and any(set_options):
        raise UsageError(
            "--from-file: --copy-only, --wait, --while-crawling and --delete-source are for a SET", print_help=False
        )
    if options.wait is not None and not 0 <= options.wait <= _MAX_WAIT_SECONDS:
        raise UsageError(f"--wait = {options.wait:g}: must be 0 to {_MAX_WAIT_SECONDS:,} seconds", print_help=False)


def _import_set(
    options: argparse.Namespace, target: CrawlTarget, parameters: FilterParameters, progress: ConsoleProgress
) -> ImportReport:
    require_sets_scheme(parameters.fingerprint)
    if target.is_separate:
        retry_until(lambda: require_no_set(target.queue_client, target.key), target.wait)
    config = target.dupefilter.config
    action = SetImport(
        target.filter_client,
        target.key,
        parameters,
        progress,
        retry_timeout=config.retry_timeout,
        shard_bytes=config.shard_bytes,
    )
    wait = _WAIT_SECONDS if options.wait is None else options.wait
    return action.run(
        copy_only=options.copy_only,
        wait=None if options.while_crawling else wait,
        delete_source=options.delete_source,
    )


def _import_file(
    path: Path, target: CrawlTarget, parameters: FilterParameters, progress: ConsoleProgress
) -> ImportReport:
    file_import.require_seen_scheme(path, parameters.fingerprint)
    config = target.dupefilter.config
    return file_import.import_file(
        path,
        lambda: target.filter_type.with_parameters(
            target.filter_client,
            target.key,
            parameters,
            cache_size=config.cache_size,
            shard_bytes=config.shard_bytes,
            retry_timeout=config.retry_timeout,
        ),
        lambda url: target.dupefilter.fingerprint_of(Request(url)),
        progress,
    )


def _text(report: ImportReport, options: argparse.Namespace) -> str:
    pace = f"{report.seconds:,.1f} s, {report.members_a_second:,.0f} a second"
    if options.from_file:
        return (
            f"Added {plural(report.members, 'line')} of {report.source} to the filter at {report.key!r}: "
            f"{report.added:,} new, {report.already_known:,} known before ({pace})."
        )
    if not report.is_finished:
        text = f"{plural(report.members, 'member')} of the SET at {report.source!r} copied ({pace})."
        if not options.copy_only:
            text += (
                f"\nThe SET has grown by {report.added_meanwhile:,} since the start: workers with the old settings "
                "still add to it, and would lose each request after the swap, so the SET stays in place."
            )
        how = " without --copy-only" if options.copy_only else ""
        return f"{text} Stop the workers, and run this again{how}: it copies the rest and swaps the SET and the filter."
    counts = f"{report.added:,} copied, {report.caught_up:,} caught up, {report.checked:,} checked"
    if report.was_finished:
        counts = f"{report.checked:,} checked again"
    text = f"The filter at {report.key!r} has every member of the SET: {counts} ({pace})."
    source = f"The SET is at {report.source!r} until you delete it by --delete-source, or by UNLINK."
    if report.deleted_source:
        source = "The SET was deleted."
    return f"{text} {source}\nStart the workers with scrapy-bloom, by its add-on or its classes, and these settings."
