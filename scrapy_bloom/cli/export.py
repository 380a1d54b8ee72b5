"""Write a filter to a file from which it can be restored; crawls may run meanwhile.

The file has all additions made before the export began. It holds the filter's secret seed, so only its owner may
read it. It does not hold the pending requests of the queue.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from scrapy.settings import Settings

from scrapy_bloom._format import as_size, plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode, advise_on_ctrl_c
from scrapy_bloom.cli._target import CrawlTarget, add_target_options, require_file
from scrapy_bloom.cli.archive.exporting import export

EXAMPLES = """\
examples:
  scrapy bloom export news news.bloom
  scrapy bloom export --key news:dupefilter --redis-url redis://localhost:6379 news.bloom --overwrite
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    require_file(options, settings)
    target = CrawlTarget.of(options, settings, wait=True)
    found = target.require_filter()
    total = sum(layer.size.bits // 8 for layer in found.layers)
    with advise_on_ctrl_c("no file was written"), _console.progress("exporting", total) as advance:
        done = export(target.store, found, options.file, overwrite=options.overwrite, advance=advance)
    report = {"server": target.server, "key": found.key, "file": str(options.file), **asdict(done)}
    text = (
        f"wrote {options.file} ({as_size(done.file_bytes)}): the filter at {found.key!r} on {target.server}, "
        f"{plural(done.layers, 'layer')} of {as_size(done.read)}, with at most {plural(done.granted, 'request')}"
    )
    if done.forgotten:
        text += f"\nof these {done.forgotten:,} forgotten: each is new once more"
    _console.print_report(options, report, text)
    target.warn_about_queued(found.references)
    return ExitCode.DONE
