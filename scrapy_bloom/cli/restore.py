"""Make a filter from a file that `scrapy bloom export` wrote, on any server and at any key.

The whole file is read before anything is written: one that was cut off or altered is refused. Workers refuse the
filter until its bytes were compared with those of the file. A restore that was stopped is run again.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import as_size
from scrapy_bloom._names import SETTINGS
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._console import progress_of
from scrapy_bloom.cli._exit_codes import ExitCode, stopped
from scrapy_bloom.cli._target import CrawlTarget, require_file
from scrapy_bloom.cli._target import add_options as add_target
from scrapy_bloom.cli.archive import reader
from scrapy_bloom.cli.archive.file_format import Archive
from scrapy_bloom.cli.archive.reader import SavedFilter
from scrapy_bloom.cli.archive.restoring import Restored, restore

EXAMPLES = """\
examples:
  scrapy bloom restore news news.bloom
  scrapy bloom restore --key news:dupefilter --redis-url redis://localhost:6380 news.bloom --overwrite
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to read")
    parser.add_argument("--overwrite", action="store_true", help="delete the filter that is there first")
    _console.add_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    require_file(options, settings)
    if options.file.exists() and not options.file.is_file():
        raise UsageError(f"{str(options.file)!r}: must be a file, which is read twice", print_help=False)
    target = CrawlTarget.of(options, settings, wait=True)
    with options.file.open("rb") as file, stopped("run it again"):
        archive = Archive(options.file, file)
        with progress_of("reading", options.file.stat().st_size) as advance:
            found = reader.read(archive, advance)
        warnings = _warnings(target, found)
        total = 2 * sum(layer.size.bits // 8 for layer in found.filter.layers)
        with progress_of("restoring", total) as advance:
            done = restore(target.store, target.client, target.key, found, overwrite=options.overwrite, advance=advance)
    if options.json:
        _console.print_json({"server": target.server, "key": target.key, **asdict(done), "warnings": warnings})
    else:
        _tell(target, done)
    for warning in warnings:
        _console.note(warning)
    return ExitCode.DONE


def _warnings(target: CrawlTarget, found: SavedFilter) -> list[str]:
    """Return the settings with which workers of the spider would be refused."""
    if not target.has_spider:
        return []
    return [_warning(*each) for each in target.parameters.differences(found.filter.parameters)]


def _warning(name: str, mine: object, theirs: object) -> str:
    is_scheme = name == "fingerprint"
    setting = "the fingerprints (REQUEST_FINGERPRINTER_CLASS)" if is_scheme else SETTINGS.option(name)
    # BLOOMFILTER_TTL = 0 is for ever.
    here, there = (0 if value is None else value for value in (mine, theirs))
    return f"{setting} = {here!r} here, {there!r} in the file: workers with these settings will be refused"


def _tell(target: CrawlTarget, done: Restored) -> None:
    print(
        f"restored {done.layers} layer(s) of {as_size(done.written)} at {target.key!r} on {target.server}, with "
        f"{done.granted:,} requests at most; the bytes are those of the file"
    )
    if done.left_out:
        print(f"{done.left_out} layers of the file were left out: their time is over")
