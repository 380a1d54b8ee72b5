"""Write a filter to a file from which it can be restored; crawls may run meanwhile.

The file has all additions made before the export began. It holds the filter's secret, so only its owner may read it. It
does not hold the pending requests of the queue.

for example:
  scrapy bloom export news news.bloom
  scrapy bloom export --key news:dupefilter --redis-url redis://localhost:6379 news.bloom --overwrite
"""

import argparse
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, Self
from zipfile import ZIP_DEFLATED, ZipFile

from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.errors import ConfigError, MismatchError
from scrapy_bloom.filter.info import server_time
from scrapy_bloom.filter.parameters import FORMAT
from scrapy_bloom.filter.sizing import BLOCK_BYTES
from scrapy_bloom.queue.inspection import sum_of
from scrapy_bloom.queue.keys import tagged
from scrapy_bloom.text import as_size, plural

# The member of the zip archive that describes the filter, behind one for each shard.
DESCRIPTION = "filter.json"
PIECE_BYTES = 1 << 20
# The field of a forgotten item.
_FORGOTTEN = re.compile(rb"f.{16}", re.DOTALL)
# In TTLs, as `filter.lua` has it.
_LIFE = 1.25


class SavedLayer(NamedTuple):
    """A layer as a filter's hash stores it, see `filter.lua`."""

    number: int
    place: int
    created: int
    items: int
    room: int
    near: int
    blocks: int
    hashes: int
    span: int

    @classmethod
    def all_of(cls, text: str) -> list[Self]:
        """Return the layers of the field `layers`."""
        return [cls(*map(int, layer.split())) for layer in text.split(";")[:-1]]

    @property
    def text(self) -> str:
        """The layer in the field `layers`."""
        return " ".join(map(str, self)) + ";"

    @property
    def shards(self) -> Iterator[tuple[str, int]]:
        """The name and the bytes of each shard."""
        for first in range(0, self.blocks, self.span):
            yield f"{self.number}:{first // self.span}", min(self.span, self.blocks - first) * BLOCK_BYTES

    @property
    def bytes(self) -> int:
        """The bytes of all shards."""
        return self.blocks * BLOCK_BYTES

    def has_ended(self, ttl: int, now: int) -> bool:
        """Return whether the layer's life has ended; all times are in ms."""
        return ttl > 0 and now >= self.created + _LIFE * ttl


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target, path = CrawlTarget(options, settings, waits=True), options.file
    for part in target.partitions:
        part.require_filter(is_complete=True)
    with (
        _console.advise_on_ctrl_c("no file was written"),
        _new_file(path, overwrite=options.overwrite) as file,
        ZipFile(file, "w", ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        parts = [_export(part, archive, folder_of(number)) for number, part in enumerate(target.partitions)]
    done = {name: sum(part[name] for part in parts) for name in parts[0]}
    done["file_bytes"] = path.stat().st_size
    text = (
        f"wrote {path} ({as_size(done['file_bytes'])}): the filter at {target.key!r} on {target.server}, "
        f"{plural(done['layers'], 'layer')} of {as_size(done['read'])}, with {plural(done['count'], 'request')}"
    )
    if done["forgotten"]:
        text += f"\nof these {done['forgotten']:,} forgotten: each is new again"
    report = {"server": target.server, "key": target.key, "file": str(path), **done}
    code = _console.report(options, report, text)
    for state in map(sum_of, target.inspect_queues()):
        if number := state.waiting + state.leased + state.dead_letters + state.failed:
            _console.note(
                f"the filter knows {plural(number, 'unfetched request')} of the queue {state.key!r}, which is not "
                "exported: a crawl elsewhere with this filter misses these pages, so finish the crawl first"
            )
    return code


@contextmanager
def _new_file(path: Path, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """Open a private file that gets its name when the block ends; an error deletes it."""

    def refuse_existing() -> None:
        if path.exists() and not overwrite:
            raise ConfigError(f"{path}: must not exist; give another path, or --overwrite")

    refuse_existing()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", suffix=".part", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            refuse_existing()
            Path(file.name).rename(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def folder_of(partition: int) -> str:
    """Return the folder of a partition's filter in the archive."""
    return f"{partition}/" if partition else ""


def _export(target: CrawlTarget, archive: ZipFile, folder: str) -> dict[str, int]:
    """Write the filter to a folder of an archive, and return the numbers of the report.

    A layer only gains bits. The hash is read again after the last one, so its counts cover all bits of the file, and it
    has all items that were forgotten by then. Layers that were appended or have ended meanwhile are left out.
    """
    before = _read(target, None)
    layers = SavedLayer.all_of(before[b"layers"].decode())
    prefix, cut = f"{tagged(target.key)}:{before[b'id'].decode()}:", set()
    with _console.progress("exporting", sum(layer.bytes for layer in layers)) as advance:
        for layer in layers:
            for shard, size in layer.shards:
                with archive.open(folder + shard, "w") as member:
                    for start in range(0, size, PIECE_BYTES):
                        end = min(start + PIECE_BYTES, size)
                        piece = target.send("GETRANGE", prefix + shard, start, end - 1)
                        member.write(piece)
                        advance(len(piece))
                        if len(piece) < end - start:
                            cut.add(layer.number)
    after = _read(target, before[b"id"])
    ttl, time = int(after[b"ttl"]), target.retry(lambda: server_time(target.client, target.key))
    found = SavedLayer.all_of(after[b"layers"].decode())
    found[-1:] = [newest._replace(items=int(after[b"count"])) for newest in found[-1:]]
    numbers = {layer.number for layer in layers}
    kept = [layer for layer in found if layer.number in numbers and not layer.has_ended(ttl, time)]
    if after[b"lost"] != before[b"lost"] or cut & {layer.number for layer in kept}:
        raise MismatchError(
            f"the filter at {target.key!r} has lost a shard (evicted?), and the file would call its requests new: "
            "run it again when a worker has replaced the shard"
        )
    forgotten = {name[1:].hex(): int(after[name]) for name in after if _FORGOTTEN.fullmatch(name)}
    copied = {name: after[name.encode()].decode() for name in ("secret", "parameters", "sizes", "ttl", "lost")}
    of_crawl = {"format": FORMAT, "key": target.key, "partitions": target.count}
    described = {"layers": "".join(layer.text for layer in kept), "forgotten": forgotten}
    archive.writestr(folder + DESCRIPTION, json.dumps({**of_crawl, **copied, **described}))
    count, read = (sum(getattr(layer, name) for layer in kept) for name in ("items", "bytes"))
    return {"layers": len(kept), "forgotten": len(forgotten), "count": count, "read": read}


def _read(target: CrawlTarget, expected: bytes | None) -> dict[bytes, bytes]:
    """Return all fields of the filter's hash; refuse another filter than the one with the expected id."""
    fields: dict[bytes, bytes] = target.send("HGETALL", target.key)
    if expected not in (None, fields.get(b"id")) or b"id" not in fields:
        raise MismatchError(
            f"the filter at {target.key!r} was replaced or cleared while it was read; run it again for the present one"
        )
    return fields
