"""Restore a filter from a file of `scrapy bloom export`, on any server and at any key.

The whole file is read before anything is written, and a truncated or altered file is refused. Workers refuse the filter
until all of it is written and compared with the file. If a restore is interrupted, run it again.

for example:
  scrapy bloom restore news news.bloom
  scrapy bloom restore --key news:dupefilter --redis-url redis://localhost:6380 news.bloom --overwrite
"""

import argparse
import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from scrapy.settings import Settings

from scrapy_bloom._format import as_size, plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._filling import Filling
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.cli.export import DESCRIPTION, PIECE_BYTES, SavedLayer, now
from scrapy_bloom.errors import ConfigError, MismatchError, RefusedError
from scrapy_bloom.filter.parameters import FORMAT
from scrapy_bloom.filter.sizing import LayerSize
from scrapy_bloom.transport.server_info import evicts, is_cluster

_BATCH = 500


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to read")
    parser.add_argument("--overwrite", action="store_true", help="delete an existing filter first")


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target, warnings = CrawlTarget(options, settings, waits=True), list[str]()
    with options.file.open("rb") as file, _console.advise_on_ctrl_c("run it again"):
        archive, description = _read(options.file, file)
        try:
            if target.has_spider:
                target.parameters().verify(target.key, description["parameters"])
        except MismatchError as error:
            warnings.append(f"workers with these settings will be refused: {error}")
        done = _restore(target, archive, description, overwrite=options.overwrite)
    text = (
        f"restored {plural(done['layers'], 'layer')} of {as_size(done['written'])} at {target.key!r} on "
        f"{target.server}, with {plural(done['count'], 'request')}; the bits are as many as those of the file"
    )
    if done["forgotten"]:
        text += f"\nof these {done['forgotten']:,} forgotten: each is new once more"
    if done["left_out"]:
        text += f"\nskipped {plural(done['left_out'], 'expired layer')} of the file"
    report = {"server": target.server, "key": target.key, **done, "warnings": warnings}
    for warning in warnings:
        _console.note(warning)
    return _console.report(options, report, text)


def _read(path: Path, file: Any) -> tuple[ZipFile, dict[str, Any]]:
    """Read the whole file; return the archive, and the description of the filter.

    Raises:
        ConfigError: it is damaged, has a newer format, or is no export.
    """
    try:
        archive = ZipFile(file)
        description = json.loads(archive.read(DESCRIPTION))
        if description["format"] > FORMAT:
            raise ConfigError(f"{path}: has format {description['format']}, newer than {FORMAT}: upgrade scrapy-bloom")
        shards = [shard for layer in SavedLayer.all_of(description["layers"]) for shard in layer.shards]
        if any(archive.getinfo(name).file_size != size for name, size in shards) or archive.testzip():
            raise ValueError("a shard is damaged")
    except ConfigError:
        raise
    except Exception as error:  # zipfile raises many of a damaged file
        raise ConfigError(
            f"{path}: must be a file of `scrapy bloom export`; it is truncated or altered, or another file ({error!r})"
        ) from None
    return archive, description


def _restore(target: CrawlTarget, archive: ZipFile, description: dict[str, Any], *, overwrite: bool) -> dict[str, int]:
    """Write the filter to the key, and return the numbers of the report."""
    found, saved = target.read_filter(), SavedLayer.all_of(description["layers"])
    if found is not None and not overwrite and found.unfinished != "restore":
        raise ConfigError(
            f"the key {target.key!r} holds a filter: give another key by --key, or --overwrite, which deletes it first"
        )
    time, ttl = now(target), int(description["ttl"])
    layers = [layer for layer in saved if not layer.has_ended(ttl, time)]
    size = sum(layer.bytes for layer in layers)
    freed = found.info.memory_bytes if found else 0
    _require_room(target, sum(LayerSize(0, layer.blocks, 0, layer.span).memory_bytes for layer in layers) - freed)
    forgotten = {name: at for name, at in description["forgotten"].items() if layers and at >= layers[0].number}
    text, sizes, secret = (description[name] for name in ("parameters", "sizes", "secret"))
    filling = Filling(target, "restore", text, sizes, secret, found=found or "none")
    count = layers[-1].items if layers else 0
    fields = ["layers", "".join(layer.text for layer in layers), "count", count, "lost", description["lost"]]
    fields += ["forgotten", len(forgotten)]
    fields += [part for name, at in forgotten.items() for part in (b"f" + bytes.fromhex(name), at)]
    for start in range(0, len(fields), 2 * _BATCH):
        filling.write("", *fields[start : start + 2 * _BATCH])
    with _console.progress("restoring", size) as advance:
        for shard, shard_size in (shard for layer in layers for shard in layer.shards):
            filling.write(shard, shard_size - 1, b"\0")  # allocates the string at once
            ones = 0
            with archive.open(shard) as member:
                for start in range(0, shard_size, PIECE_BYTES):
                    piece = member.read(PIECE_BYTES)
                    ones += int.from_bytes(piece).bit_count()
                    if any(piece):
                        filling.write(shard, start, piece)
                    advance(len(piece))
            if filling.bits(shard) != ones:
                raise RefusedError(f"the server has other bits in shard {shard!r} than the file: run it again")
    filling.complete()
    done = {"layers": len(layers), "left_out": len(saved) - len(layers), "forgotten": len(forgotten)}
    return done | {"written": size, "count": sum(layer.items for layer in layers)}


def _require_room(target: CrawlTarget, needed: int) -> None:
    """Refuse a server without room for `needed` bytes. A cluster counts as roomy."""
    info = {} if is_cluster(target.client) else target.retry(target.client.info)
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if limit and not evicts(info, expires=False) and used + needed > limit:
        raise RefusedError(
            f"Redis has no room for the filter at {target.key!r}, which needs {needed:,} bytes more (it uses {used:,} "
            f"of {limit:,} bytes): raise its maxmemory or delete other data, and run it again"
        )
