"""Restore a filter from a file of `scrapy bloom export`, on any server and at any key.

The whole file is read before anything is written, and a truncated or altered file is refused. Workers refuse the filter
until all of it is written and compared with the file. If a restore is interrupted, run it again.

for example:
  scrapy bloom restore news news.bloom
  scrapy bloom restore --key news:dupefilter --redis-url redis://localhost:6380 news.bloom --overwrite
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._filling import Filling
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.cli.export import DESCRIPTION, PIECE_BYTES, SavedLayer, folder_of
from scrapy_bloom.errors import ConfigError, MismatchError, RefusedError
from scrapy_bloom.filter.info import server_time
from scrapy_bloom.filter.parameters import FORMAT
from scrapy_bloom.filter.sizing import LayerSize
from scrapy_bloom.text import as_size, plural
from scrapy_bloom.transport.connect import is_cluster
from scrapy_bloom.transport.server_info import evicts

_BATCH = 500


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to read")
    parser.add_argument("--overwrite", action="store_true", help="delete an existing filter first")


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target, warnings = CrawlTarget(options, settings, waits=True), list[str]()
    target.require_dupefilter()
    with options.file.open("rb") as file, _console.advise_on_ctrl_c("run it again"):
        archive, descriptions = _read(options.file, file)
        if target.count != len(descriptions):
            raise ConfigError(
                f"BLOOMFILTER_PARTITIONS = {target.count}: the filter in {options.file} has {len(descriptions)}; set "
                "that number, or import the SET or the URLs again into a filter with yours"
            )
        try:
            if target.has_spider:
                target.parameters().verify(target.key, descriptions[0]["parameters"])
        except MismatchError as error:
            warnings.append(f"workers with these settings will be refused: {error}")
        done = _restore(target, archive, descriptions, overwrite=options.overwrite)
    text = (
        f"restored {plural(done['layers'], 'layer')} of {as_size(done['written'])} at {target.key!r} on "
        f"{target.server}, with {plural(done['count'], 'request')}; the bits are as many as those of the file"
    )
    if done["forgotten"]:
        text += f"\nof these {done['forgotten']:,} forgotten: each is new again"
    if done["left_out"]:
        text += f"\nskipped {plural(done['left_out'], 'expired layer')} of the file"
    report = {"server": target.server, "key": target.key, **done, "warnings": warnings}
    for warning in warnings:
        _console.note(warning)
    return _console.report(options, report, text)


def _read(path: Path, file: Any) -> tuple[ZipFile, list[dict[str, Any]]]:
    """Read the whole file; return the archive, and the description of the filter in each partition.

    Raises:
        ConfigError: it is damaged, has a newer format, or is no export.
    """
    try:
        archive = ZipFile(file)
        first = json.loads(archive.read(DESCRIPTION))
        if first["format"] > FORMAT:
            raise ConfigError(f"{path}: has format {first['format']}, newer than {FORMAT}: upgrade scrapy-bloom")
        folders = [folder_of(number) for number in range(first["partitions"])]
        descriptions = [json.loads(archive.read(folder + DESCRIPTION)) for folder in folders]
        for folder, description in zip(folders, descriptions, strict=True):
            shards = [shard for layer in SavedLayer.all_of(description["layers"]) for shard in layer.shards]
            if any(archive.getinfo(folder + name).file_size != size for name, size in shards):
                raise ValueError("a shard is damaged")
        if archive.testzip():
            raise ValueError("a shard is damaged")
    except ConfigError:
        raise
    except Exception as error:  # zipfile raises many of a damaged file
        raise ConfigError(
            f"{path}: must be a file of `scrapy bloom export`; it is truncated or altered, or another file ({error!r})"
        ) from None
    return archive, descriptions


def _restore(
    target: CrawlTarget, archive: ZipFile, descriptions: list[dict[str, Any]], *, overwrite: bool
) -> dict[str, int]:
    """Write the filter to the key, and return the numbers of the report.

    All partitions are begun before one is complete, and the first one is completed last: until then no worker joins,
    and an interrupted restore begins again.
    """
    parts, time = target.partitions, target.retry(lambda: server_time(target.client, target.key))
    found = [part.read_filter() for part in parts]
    overwrite = overwrite or (found[0] is not None and found[0].unfinished == "restore")
    for each in found:
        if each is not None and not overwrite:
            raise ConfigError(
                f"the key {each.key!r} holds a filter: give another key by --key, or --overwrite, which deletes it "
                "first"
            )
    saved = [SavedLayer.all_of(description["layers"]) for description in descriptions]
    ttl = int(descriptions[0]["ttl"])
    layers = [[layer for layer in each if not layer.has_ended(ttl, time)] for each in saved]
    flat = [layer for each in layers for layer in each]
    freed = sum(each.info.memory_bytes for each in found if each)
    _require_room(target, sum(LayerSize(0, layer.blocks, 0, layer.span).memory_bytes for layer in flat) - freed)
    fillings = [
        Filling(part, "restore", *(each[name] for name in ("parameters", "sizes", "secret")), found=old or "none")
        for part, each, old in zip(parts, descriptions, found, strict=True)
    ]
    forgotten = 0
    size = sum(layer.bytes for layer in flat)
    with _console.progress("restoring", size) as advance:
        for number, filling in enumerate(fillings):
            forgotten += _write_hash(filling, descriptions[number], layers[number])
            shards = [shard for layer in layers[number] for shard in layer.shards]
            _write_shards(filling, archive, folder_of(number), shards, advance)
    for filling in reversed(fillings):
        filling.complete()
    done = {"layers": len(flat), "left_out": sum(map(len, saved)) - len(flat), "forgotten": forgotten}
    return done | {"written": size, "count": sum(layer.items for layer in flat)}


def _write_hash(filling: Filling, description: dict[str, Any], layers: list[SavedLayer]) -> int:
    """Write the fields of a filter, and return the number of its forgotten items."""
    forgotten = {name: at for name, at in description["forgotten"].items() if layers and at >= layers[0].number}
    count = layers[-1].items if layers else 0
    fields = ["layers", "".join(layer.text for layer in layers), "count", count, "lost", description["lost"]]
    fields += ["forgotten", len(forgotten)]
    fields += [part for name, at in forgotten.items() for part in (b"f" + bytes.fromhex(name), at)]
    for start in range(0, len(fields), 2 * _BATCH):
        filling.write("", *fields[start : start + 2 * _BATCH])
    return len(forgotten)


def _write_shards(
    filling: Filling, archive: ZipFile, folder: str, shards: list[tuple[str, int]], advance: Callable[[int], object]
) -> None:
    """Write the bits of a filter, and compare their number with the file."""
    for shard, size in shards:
        filling.write(shard, size - 1, b"\0")  # allocates the string at once
        ones = 0
        with archive.open(folder + shard) as member:
            for start in range(0, size, PIECE_BYTES):
                piece = member.read(PIECE_BYTES)
                ones += int.from_bytes(piece).bit_count()
                if any(piece):
                    filling.write(shard, start, piece)
                advance(len(piece))
        if filling.bits(shard) != ones:
            raise RefusedError(f"the server has other bits in shard {shard!r} than the file: run it again")


def _require_room(target: CrawlTarget, needed: int) -> None:
    """Refuse a server without room for `needed` bytes. A cluster counts as roomy."""
    info = {} if is_cluster(target.client) else target.retry(target.client.info)
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if limit and not evicts(info, expires=False) and used + needed > limit:
        raise RefusedError(
            f"Redis has no room for the filter at {target.key!r}, which needs {needed:,} bytes more (it uses {used:,} "
            f"of {limit:,} bytes): raise its maxmemory or delete other data, and run it again"
        )
