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
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple, Self
from zipfile import ZIP_DEFLATED, ZipFile

from scrapy.settings import Settings

from scrapy_bloom.cli import console
from scrapy_bloom.cli.target import CrawlTarget, Place, add_target_options
from scrapy_bloom.errors import ConfigError, MismatchError
from scrapy_bloom.filter.info import server_time
from scrapy_bloom.filter.parameters import FORMAT
from scrapy_bloom.filter.sizing import BLOCK_BYTES
from scrapy_bloom.text import as_size, plural
from scrapy_bloom.transport.connect import tagged

# The last member of the zip archive, behind one for each shard.
DESCRIPTION = "filter.json"
# The fields of the hash in the file; those of forgotten items hold any bytes.
_FIELDS = re.compile("secret|parameters|sizes|state|count|f.{16}", re.DOTALL)
# In TTLs, as `filter.lua` has it.
_LIFE = 1.25


class Layer(NamedTuple):
    """A layer as a filter's hash stores it, see `filter.lua`; `created` is in ms."""

    number: int
    place: int
    created: int
    items: int
    room: int
    near: int
    blocks: int
    hashes: int
    span: int

    @property
    def shards(self) -> list[tuple[str, int]]:
        """The name and the bytes of each shard."""
        sizes = [min(self.span, self.blocks - first) for first in range(0, self.blocks, self.span)]
        return [(f"{self.number}:{shard}", size * BLOCK_BYTES) for shard, size in enumerate(sizes)]


class State(NamedTuple):
    """The field `state` of a filter's hash without the layers, see `filter.lua`; `ttl` is in ms."""

    id: str
    ttl: int
    forgets: int
    lost: int
    forgotten: int

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self:
        """Return that of a hash."""
        filter_id, *numbers = fields["state"].partition(";")[0].split()
        return cls(filter_id, *map(int, numbers))


def state_text(state: State, layers: Iterable[Layer]) -> str:
    """Return the text of the field `state`."""
    return "".join(" ".join(map(str, part)) + ";" for part in (state, *layers))


def layers_of(fields: Mapping[str, str], time: int) -> list[Layer]:
    """Return the layers of a hash that have not ended at a server's time in ms."""
    layers = [Layer(*map(int, text.split())) for text in fields["state"].split(";")[1:-1]]
    layers[-1:] = [newest._replace(items=int(fields["count"])) for newest in layers[-1:]]
    ttl = State.of(fields).ttl
    return [layer for layer in layers if not ttl or time < layer.created + _LIFE * ttl]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target, path = CrawlTarget(options, settings, waits=True), options.file
    stored = {part: part.require_filter() for part in target.partitions}
    ids = {part: each.id.encode() for part, each in stored.items()}
    noun = next(iter(stored.values())).parameters.noun
    if path.exists() and not options.overwrite:
        raise ConfigError(f"{path}: must not exist; give another path, or --overwrite")
    with NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", suffix=".part", delete=False) as file:
        try:
            with console.advise_on_ctrl_c("no file was written"), ZipFile(file, "w", ZIP_DEFLATED) as archive:
                filters = [_export(part, ids[part], archive, number) for number, part in enumerate(ids)]
                description = {"format": FORMAT, "key": target.key, "partitions": filters}
                archive.writestr(DESCRIPTION, json.dumps(description))
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        finally:
            Path(file.name).unlink(missing_ok=True)
    size, count = path.stat().st_size, sum(layer.items for fields in filters for layer in layers_of(fields, 0))
    report = {"server": target.server, "key": target.key, "file": str(path), "file_bytes": size, "count": count}
    text = f"the filter at {target.key!r} on {target.server}, with {plural(count, noun)}"
    code = console.report(options, report, f"wrote {path} ({as_size(size)}): {text}")
    states = [part.inspect_queue(part.queue) for part in ids if part.queue]
    if left := sum(each.waiting + each.leased + each.dead_letters + each.failed for each in states):
        known = plural(left, "unfetched request")
        text = f"the filter knows {known} of the queue {target.queue!r}, which is not exported"
        console.note(f"{text}: a crawl elsewhere with this filter misses these pages, so finish the crawl first")
    return code


def _export(target: Place, filter_id: bytes, archive: ZipFile, partition: int) -> dict[str, str]:
    """Write the shards of a partition's filter, and return the fields of its hash for the file.

    A layer only gains bits. The hash is read again after the last one, so its counts cover all bits of the file, and it
    has all items that were forgotten by then. Layers that were appended or have ended meanwhile are left out.
    """
    before, cut = _read(target, filter_id), set[int]()
    layers = {layer.number: layer for layer in layers_of(before, 0)}
    with console.progress("exporting", sum(size for layer in layers.values() for _, size in layer.shards)) as advance:
        for number, layer in layers.items():
            for shard, size in layer.shards:
                bits = target.send("GETRANGE", f"{tagged(target.key)}:{filter_id.decode()}:{shard}", 0, -1)
                archive.writestr(f"{partition}/{shard}", bits, compresslevel=1)
                cut |= {number} if len(bits) < size else set()
                advance(size)
    fields = _read(target, filter_id)
    time = target.retry(lambda: server_time(target.client, target.key))
    kept = [layer for layer in layers_of(fields, time) if layer.number in layers]
    state = State.of(fields)
    if state.lost != State.of(before).lost or cut & {layer.number for layer in kept}:
        text = "has lost a shard (evicted?), and the file would call its requests new"
        raise MismatchError(f"the filter at {target.key!r} {text}: run it again when a worker has replaced the shard")
    fields["state"] = state_text(state, kept)
    fields["count"] = str(kept[-1].items if kept else 0)
    return {name: value for name, value in fields.items() if _FIELDS.fullmatch(name)}


def _read(target: Place, filter_id: bytes) -> dict[str, str]:
    """Return the hash of this filter, as Latin-1, which has a character for each byte."""
    fields = target.send("HGETALL", target.key)
    if fields.get(b"state", b"").partition(b" ")[0] != filter_id:
        raise MismatchError(f"the filter at {target.key!r} was replaced or cleared while it was read: run it again")
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in fields.items()}
