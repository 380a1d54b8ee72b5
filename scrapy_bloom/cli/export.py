"""Write a filter to a file, with all that it needs to be made again: crawls may go on meanwhile.

What was in the filter before this began is in the file. The file holds the filter's secret hash key, so that it is
readable by its owner alone. Requests that wait in the queue are not in it.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from scrapy.settings import Settings

from scrapy_bloom._format import as_size
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._console import progress_of
from scrapy_bloom.cli._exit_codes import ExitCode, stopped
from scrapy_bloom.cli._target import CrawlTarget, require_file
from scrapy_bloom.cli._target import add_options as add_target
from scrapy_bloom.cli.archive.exporting import export

EXAMPLES = """\
examples:
  scrapy bloom export news news.bloom
  scrapy bloom export --key news:dupefilter --redis-url redis://localhost:6379 news.bloom --overwrite
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to write")
    parser.add_argument("--overwrite", action="store_true", help="write it where there is such a file already")
    _console.add_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    require_file(options, settings)
    target = CrawlTarget.of(options, settings, wait=True)
    found = target.require()
    total = sum(layer.size.bits // 8 for layer in found.layers)
    with stopped("no file was written"), progress_of("exporting", total) as advance:
        done = export(target.store, found, options.file, overwrite=options.overwrite, advance=advance)
    if options.json:
        _console.print_json({"server": target.server, "key": found.key, "file": str(options.file), **asdict(done)})
    else:
        print(
            f"wrote {options.file} ({as_size(done.file_bytes)}): the filter at {found.key!r} on {target.server}, "
            f"{done.layers} layer(s) of {as_size(done.read)}, with {done.granted:,} requests at most"
        )
    target.warn_about_queued(found.users)
    return ExitCode.DONE
