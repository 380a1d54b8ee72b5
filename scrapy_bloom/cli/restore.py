"""Restore a filter from a file of `scrapy bloom export`, on any server and at any key.

The whole file is read before anything is written, and a truncated or altered file is refused. Workers refuse the filter
until all of it is written and compared with the file. If a restore is interrupted, run it again.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

from scrapy.settings import Settings

from scrapy_bloom._format import as_size, plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode, advise_on_ctrl_c
from scrapy_bloom.cli._filling import Filling
from scrapy_bloom.cli._target import CrawlTarget, add_target_options, require_file
from scrapy_bloom.cli.export import DESCRIPTION, PIECE_BYTES, SavedLayer, now
from scrapy_bloom.errors import ConfigError, MismatchError, RefusedError
from scrapy_bloom.filter.parameters import FORMAT
from scrapy_bloom.filter.sizing import LayerSize
from scrapy_bloom.transport.server_info import evicts, is_cluster

EXAMPLES = """\
examples:
  scrapy bloom restore news news.bloom
  scrapy bloom restore --key news:dupefilter --redis-url redis://localhost:6380 news.bloom --overwrite
"""
_BATCH = 500


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to read")
    parser.add_argument("--overwrite", action="store_true", help="delete an existing filter first")
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    require_file(options, settings)
    target = CrawlTarget(options, settings, waits=True)
    with options.file.open("rb") as file, advise_on_ctrl_c("run it again"):
        archive, description, ones = _read(options.file, file)
        warnings = _warnings(target, description["parameters"])
        done = _restore(target, archive, description, ones, overwrite=options.overwrite)
    text = (
        f"restored {plural(done['layers'], 'layer')} of {as_size(done['written'])} at {target.key!r} on "
        f"{target.server}, with {plural(done['count'], 'request')}; the bits are as many as those of the file"
    )
    if done["forgotten"]:
        text += f"\nof these {done['forgotten']:,} forgotten: each is new once more"
    if done["left_out"]:
        text += f"\nskipped {plural(done['left_out'], 'expired layer')} of the file"
    report = {"server": target.server, "key": target.key, **done, "warnings": warnings}
    _console.print_report(options, report, text)
    for warning in warnings:
        _console.note(warning)
    return ExitCode.DONE


def _read(path: Path, file: IO[bytes]) -> tuple[ZipFile, dict[str, Any], dict[str, int]]:
    """Read the whole file; return the archive, the description of the filter, and the number of ones in each shard.

    Raises:
        ConfigError: it is damaged, has a newer format, or is no export.
    """
    try:
        archive = ZipFile(file)
        description = json.loads(archive.read(DESCRIPTION))
        if description["format"] > FORMAT:
            raise ConfigError(f"{path}: has format {description['format']}, newer than {FORMAT}: upgrade scrapy-bloom")
        layers = SavedLayer.all_of(description["layers"])
        with _console.progress("reading", sum(layer.bytes for layer in layers)) as advance:
            shards = [each for layer in layers for each in layer.shards]
            return archive, description, {name: _count(archive, name, size, advance) for name, size in shards}
    except ConfigError:
        raise
    except Exception as error:  # zipfile raises many of a damaged file
        raise ConfigError(
            f"{path}: must be a file of `scrapy bloom export`; it is truncated or altered, or another file ({error!r})"
        ) from None


def _count(archive: ZipFile, shard: str, size: int, advance: Callable[[int], None]) -> int:
    """Return the number of ones in a shard of the archive."""
    if archive.getinfo(shard).file_size != size:
        raise ValueError(shard)
    ones = 0
    with archive.open(shard) as member:
        while piece := member.read(PIECE_BYTES):
            ones += int.from_bytes(piece).bit_count()
            advance(len(piece))
    return ones


def _warnings(target: CrawlTarget, parameters: str) -> list[str]:
    """Return a warning if workers of the spider will be refused."""
    try:
        if target.has_spider:
            target.parameters().verify(target.key, parameters)
    except MismatchError as error:
        return [f"workers with these settings will be refused: {error}"]
    return []


def _restore(
    target: CrawlTarget, archive: ZipFile, description: dict[str, Any], ones: dict[str, int], *, overwrite: bool
) -> dict[str, int]:
    """Write the filter to the key, and return the numbers of the report."""
    found, saved = target.read_filter(), SavedLayer.all_of(description["layers"])
    if found is not None and not overwrite and found.unfinished != "restore":
        raise ConfigError(
            f"the key {target.key!r} holds a filter: give another key by --key, or --overwrite, which deletes it first"
        )
    time, ttl = now(target), int(description["ttl"])
    layers = [layer for layer in saved if not layer.has_ended(ttl, time)]
    freed = found.info.memory_bytes if found else 0
    _require_room(target, sum(LayerSize(0, layer.blocks, 0, layer.span).memory_bytes for layer in layers) - freed)
    forgotten = {name: at for name, at in description["forgotten"].items() if layers and at >= layers[0].number}
    text, sizes, secret = (description[name] for name in ("parameters", "sizes", "secret"))
    filling = Filling(target, "restore", text, sizes, secret, found=found or "none")
    fields = {
        "layers": "".join(layer.text for layer in layers),
        "count": layers[-1].items if layers else 0,
        "lost": description["lost"],
        "forgotten": len(forgotten),
    }
    filling.write("", *(part for field in fields.items() for part in field))
    names = [*forgotten]
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        filling.write("", *(part for name in batch for part in (b"f" + bytes.fromhex(name), forgotten[name])))
    with _console.progress("restoring", sum(layer.bytes for layer in layers)) as advance:
        for layer in layers:
            for shard, size in layer.shards:
                filling.write(shard, size - 1, b"\0")  # allocates the string at once
                with archive.open(shard) as member:
                    for start in range(0, size, PIECE_BYTES):
                        piece = member.read(PIECE_BYTES)
                        if any(piece):
                            filling.write(shard, start, piece)
                        advance(len(piece))
                if filling.bits(shard) != ones[shard]:
                    raise RefusedError(f"the server has other bits in shard {shard!r} than the file: run it again")
    filling.complete()
    return {
        "layers": len(layers),
        "left_out": len(saved) - len(layers),
        "written": sum(layer.bytes for layer in layers),
        "count": sum(layer.items for layer in layers),
        "forgotten": len(forgotten),
    }


def _require_room(target: CrawlTarget, needed: int) -> None:
    """Refuse a server without room for `needed` bytes. A cluster counts as roomy."""
    if is_cluster(target.client):
        return
    info = target.retry(target.client.info)
    limit, used = int(info.get("maxmemory", 0)), int(info["used_memory"])
    if limit and not evicts(info, expires=False) and used + needed > limit:
        raise RefusedError(
            f"Redis has no room for the filter at {target.key!r}, which needs {needed:,} bytes more (it uses {used:,} "
            f"of {limit:,} bytes): raise its maxmemory or delete other data, and run it again"
        )
