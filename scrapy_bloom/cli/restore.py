"""Restore a filter from a file of `scrapy bloom export`, on any server and at any key.

The whole file is read before anything is written, and a truncated or altered file is refused. Workers refuse the filter
until its bytes have been compared with the file. If a restore is interrupted, run it again.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import as_size, plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode, advise_on_ctrl_c
from scrapy_bloom.cli._target import CrawlTarget, add_target_options, require_file
from scrapy_bloom.cli.archive import file_format
from scrapy_bloom.cli.archive.file_format import Archive
from scrapy_bloom.cli.archive.restoring import restore
from scrapy_bloom.errors import SETTING_NAMES

EXAMPLES = """\
examples:
  scrapy bloom restore news news.bloom
  scrapy bloom restore --key news:dupefilter --redis-url redis://localhost:6380 news.bloom --overwrite
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to read")
    parser.add_argument("--overwrite", action="store_true", help="delete an existing filter first")
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    require_file(options, settings)
    if options.file.exists() and not options.file.is_file():
        raise UsageError(f"{str(options.file)!r}: must be a regular file, because it is read twice", print_help=False)
    target = CrawlTarget.of(options, settings, wait=True)
    with options.file.open("rb") as file, advise_on_ctrl_c("run it again"):
        archive = Archive(options.file, file)
        with _console.progress("reading", options.file.stat().st_size) as advance:
            saved = file_format.read(archive, advance)
        warnings = []
        if target.has_spider:
            warnings = [_warning(*each) for each in target.parameters.differences(saved.filter.parameters)]
        # All bytes are written, and then compared.
        total = 2 * sum(layer.size.bits // 8 for layer in saved.filter.layers)
        with _console.progress("restoring", total) as advance:
            done = restore(
                target.store, target.filter_client, target.key, saved, overwrite=options.overwrite, advance=advance
            )
    report = {"server": target.server, "key": target.key, **asdict(done), "warnings": warnings}
    text = (
        f"restored {plural(done.layers, 'layer')} of {as_size(done.written)} at {target.key!r} on {target.server}, "
        f"with at most {plural(done.granted, 'request')}; the bytes equal those of the file"
    )
    if done.forgotten:
        text += f"\nof these {done.forgotten:,} forgotten: each is new once more"
    if done.left_out:
        text += f"\nskipped {plural(done.left_out, 'expired layer')} of the file"
    _console.print_report(options, report, text)
    for warning in warnings:
        _console.note(warning)
    return ExitCode.DONE


def _warning(name: str, mine: object, theirs: object) -> str:
    """Return the warning about a parameter that makes workers of the spider refuse the filter."""
    setting = SETTING_NAMES.option(name)
    if name == "fingerprint":
        setting = "the fingerprints (REQUEST_FINGERPRINTER_CLASS)"
    # A filter without a TTL has BLOOMFILTER_TTL = 0.
    here, there = (0 if value is None else value for value in (mine, theirs))
    return f"{setting} = {here!r} here, {there!r} in the file: workers with these settings will be refused"
