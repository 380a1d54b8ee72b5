"""Restore a filter from a file of `scrapy bloom export`, on any server and at any key that is empty.

The whole file is read before anything is written, and a truncated or altered file is refused. The filter appears at its
key in the last step. Run an interrupted restore again: its remains are deleted, or expire within a day.

for example:
  scrapy bloom restore news news.bloom
  scrapy bloom restore --key news:dupefilter --redis-url redis://localhost:6380 news.bloom
"""

import argparse
import contextlib
import json
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from redis.client import NEVER_DECODE
from scrapy.settings import Settings

from scrapy_bloom.cli import console
from scrapy_bloom.cli.export import DESCRIPTION, State, layers_of, state_text
from scrapy_bloom.cli.target import CrawlTarget, Place, add_target_options
from scrapy_bloom.errors import ConfigError, RefusedError
from scrapy_bloom.filter.info import server_time
from scrapy_bloom.filter.parameters import FORMAT, FilterParameters
from scrapy_bloom.text import plural
from scrapy_bloom.transport.connect import run_id, tagged
from scrapy_bloom.transport.failures import FAULTS

_DAY = 86_400_000  # ms
# In TTLs, as `filter.lua` has it.
_EXPIRY = 1.5
# A client must send a command within its timeout, also over a slow line.
_CHUNK_BYTES = 1 << 20
_BATCH = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to read")


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target, path = CrawlTarget(options, settings, waits=True), options.file
    target.require_dupefilter()
    parts, is_whole = target.partitions, False
    with path.open("rb") as file, console.advise_on_ctrl_c("run it again"):
        try:
            archive = ZipFile(file)
            filters = _read(archive)
        except Exception as error:  # zipfile raises many of a damaged file
            text = f"{path}: must be a whole file of `scrapy bloom export`, of this version or an older one"
            raise ConfigError(f"{text} ({error!r})") from None
        if len(parts) != len(filters):
            text = f"BLOOMFILTER_PARTITIONS = {len(parts)}: the filter in {path} has {len(filters)}; set that number,"
            raise ConfigError(f"{text} or import the SET or the URLs again into a filter with yours")
        time = target.retry(lambda: server_time(target.client, target.key))
        copies = [_Copy(part, fields, time) for part, fields in zip(parts, filters, strict=True)]
        try:
            with console.progress("restoring", sum(sum(copy.sizes.values()) for copy in copies)) as advance:
                for number, copy in enumerate(copies):
                    copy.write(archive, number, advance)
            for copy in copies:
                copy.keep()
            is_whole = True
            # Actions and workers look for the first partition first.
            for copy in reversed(copies):
                copy.give_key()
        except BaseException:
            with contextlib.suppress(*FAULTS):
                for copy in copies:
                    copy.delete(is_whole=is_whole)
            raise
    count = sum(layer.items for fields in filters for layer in layers_of(fields, time))
    noun = FilterParameters.of_text(target.key, filters[0]["parameters"]).noun
    text = f"restored the filter at {target.key!r} on {target.server}, with {plural(count, noun)}"
    return console.report(options, {"server": target.server, "key": target.key, "count": count}, text)


def _read(archive: ZipFile) -> list[dict[str, str]]:
    """Read the whole file, and return the fields of the filter in each partition."""
    description = json.loads(archive.read(DESCRIPTION))
    if not 1 <= description["format"] <= FORMAT:
        raise ValueError(f"it has format {description['format']}, newer than {FORMAT}: upgrade scrapy-bloom")
    for number, fields in enumerate(description["partitions"]):
        for name, size in (shard for layer in layers_of(fields, 0) for shard in layer.shards):
            if len(archive.read(f"{number}/{name}")) != size:
                raise ValueError(f"the shard {name} has another size")
    filters: list[dict[str, str]] = description["partitions"]
    return filters


class _Copy:
    """A partition's filter while it is written: its id is new, and its hash has a temporary key.

    So no worker and no other restore finds it. All keys expire within a day, until `keep` is called.
    """

    def __init__(self, target: Place, fields: dict[str, str], time: int) -> None:
        if target.send("EXISTS", target.key):
            raise _occupied(target)
        self._id, self._layers = secrets.token_hex(8), layers_of(fields, time)
        state = State.of(fields)._replace(id=self._id)
        self._fields = {**fields, "state": state_text(state, self._layers)}
        self._target, self._time, self._ttl = target, time, state.ttl
        self._prefix = f"{tagged(target.key)}:{self._id}:"
        self.sizes = {f"{self._prefix}{name}": size for layer in self._layers for name, size in layer.shards}
        self._hash, self._run = f"{self._prefix}hash", self._server_run()

    def _server_run(self) -> str:
        return self._target.retry(lambda: run_id(self._target.client, self._target.key))

    def write(self, archive: ZipFile, partition: int, advance: Callable[[int], object]) -> None:
        """Write the shards, and then the hash."""
        for layer in self._layers:
            end = round(layer.created + _EXPIRY * self._ttl) if self._ttl else self._time + _DAY
            for name, size in layer.shards:
                bits, shard = archive.read(f"{partition}/{name}"), self._prefix + name
                # From the end: the server allocates the string exactly, and a shorter one was evicted meanwhile.
                for start in reversed(range(0, size, _CHUNK_BYTES)):
                    self._require(self._send(end, "SETRANGE", shard, start, bits[start : start + _CHUNK_BYTES]) == size)
                advance(size)
        end = round(self._time + (_EXPIRY * self._ttl or _DAY))
        fields: list[Any] = [text.encode("latin-1") for pair in self._fields.items() for text in pair]
        fields += ["place", 0, "ready", 0]
        for start in range(0, len(fields), _BATCH):
            self._send(end, "HSET", self._hash, *fields[start : start + _BATCH])

    def _send(self, end: int, name: str, key: str, *arguments: str | bytes | int) -> Any:
        """Return the reply to a command; its key expires at a time in ms, also if this process is killed now."""

        def attempt() -> Any:
            pipeline = self._target.client.pipeline(transaction=False)
            pipeline.execute_command(name, key, *arguments)
            pipeline.execute_command("PEXPIREAT", key, end)
            return pipeline.execute()[0]

        return self._target.retry(attempt)

    def keep(self) -> None:
        """Keep the keys of a filter without a TTL, and require that the server has them all."""
        names = (*self.sizes, self._hash)
        for name in () if self._ttl else names:
            self._target.send("PERSIST", name)
        # Another server, or a restarted one, may lack the last commands.
        self._require(self._target.send("EXISTS", *names) == len(names) and self._server_run() == self._run)

    def _require(self, is_whole: bool) -> None:
        if not is_whole:
            text = "has lost a part of the filter (restarted, replaced or evicting?): see its logs, and run this again"
            raise RefusedError(f"{self._target.server} {text}")

    def give_key(self) -> None:
        """Let the hash have the filter's key."""
        execute = partial(self._target.client.execute_command, **{NEVER_DECODE: []})
        key, own = self._target.key, self._id.encode()

        def attempt() -> bool:
            # The key may have it by a RENAMENX whose reply was lost.
            return (execute("HGET", key, "state") or b"").startswith(own) or execute("RENAMENX", self._hash, key)

        if not self._target.retry(attempt):
            raise _occupied(self._target)

    def delete(self, *, is_whole: bool) -> None:
        """Delete the keys, unless the hash has the filter's key already."""
        if self._target.client.unlink(self._hash) or not is_whole:
            for name in self.sizes:
                self._target.client.unlink(name)


def _occupied(target: Place) -> ConfigError:
    action = "give another key by --key, or delete the filter there first by `scrapy bloom clear`"
    return ConfigError(f"the key {target.key!r} is not empty: {action}")
