"""An interrupted crawl as a release stores it: the keys in Redis, a spool file and the exports of its filter.

`python -m tests.support.recorded` records a crawl into the directory of the present release. Once released, a recording
is never made anew: later releases must complete its crawl.
"""

import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
from scrapy import Request
from scrapy.utils.misc import load_object

from devtools.waiting import until
from scrapy_bloom import BloomRFPDupeFilter
from scrapy_bloom._format import as_text
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.queue.queue_keys import QueueKeys, StartKeys
from scrapy_bloom.spool.directory import SpoolDirectory
from tests.support import command
from tests.support.pages import tree
from tests.support.scenario import OURS, Kind, Scene, scene
from tests.support.servers import Server, running
from tests.support.spiders import golden
from tests.support.spiders.started import BAD

DATA = Path(__file__).parents[1] / "data"
SERIALIZERS = {"pickle": "scrapy_redis.picklecompat", "json": "scrapy_bloom.serializers.json"}
KEY = "golden"
QUEUE = f"{KEY}:queue"
START = StartKeys(f"{KEY}:start")
# Requests have this host in every recording; a proxy leads it to the site of the test.
SITE = "http://golden.test"
DEADLY, LATE, SPOOLED, UNSURE, FORGOTTEN = "/page/20", "/late", "/spooled", "/unsure", "/page/1"
PAGES = 201
PATHS = {*tree(PAGES), LATE, SPOOLED, UNSURE}
DELIVERIES = 2
# The recorded workers are slow, and take over from each other in the middle of the crawl. Their own leases decide when
# others take over.
SLOW: Kind = {"BLOOMFILTER_LEASE": 0.5, "DOWNLOAD_DELAY": 0.05}


@contextmanager
def golden_scene(directory: Path, server: Server, serializer: str) -> Iterator[tuple[Scene, Kind]]:
    """The site, with workers fed by the start key, and their settings."""
    at = {path: [SITE + to for to in tree(PAGES).get(path, ())] for path in PATHS}
    links = {SITE + path: targets for path, targets in at.items()}
    settings = {
        **OURS,
        "SCHEDULER_SERIALIZER": SERIALIZERS[serializer],
        "BLOOMFILTER_MAX_DELIVERIES": DELIVERIES,
        "REDIS_START_URLS_KEY": START.start,
        "MAX_IDLE_TIME_BEFORE_CLOSE": 1,
        "CONCURRENT_REQUESTS": 4,
    }
    with scene(links, directory, server.url, KEY) as played:
        played.spider = golden.__file__
        proxy, played.site.url = played.site.url, SITE
        before = os.environ.get("http_proxy")
        os.environ["http_proxy"] = proxy
        try:
            yield played, settings
        finally:
            os.environ.pop("http_proxy")
            if before is not None:
                os.environ["http_proxy"] = before


def dump(client: redis.Redis) -> dict[str, Any]:
    """Return all keys of a server and their contents, as text in Latin-1."""
    read: dict[str, Callable[[Any], Any]] = {
        "string": client.get,
        "hash": client.hgetall,
        "list": lambda key: client.lrange(key, 0, -1),
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    found = {}
    for key in sorted(client.scan_iter()):
        kind = as_text(client.type(key))
        found[key.decode()] = {kind: _as_text(read[kind](key))}
    return found


def read(directory: Path, serializer: str) -> dict[str, Any]:
    """Return a recording: `keys` as `dump` returns them, and `fetched`, the pages that dead workers have fetched."""
    found: dict[str, Any] = json.loads(gzip.decompress((directory / f"{serializer}.json.gz").read_bytes()))
    return found


def load(client: redis.Redis, keys: dict[str, Any]) -> None:
    """Restore the keys that `dump` has returned."""
    for key, contents in keys.items():
        ((kind, value),) = contents.items()
        if kind == "string":
            client.set(key, value.encode("latin-1"))
        elif kind == "hash":
            client.hset(key, mapping={name: text.encode("latin-1") for name, text in value.items()})
        elif kind == "list":
            client.rpush(key, *(text.encode("latin-1") for text in value))
        else:
            client.zadd(key, {member.encode("latin-1"): score for member, score in value})


def _as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {_as_text(name): _as_text(each) for name, each in value.items()}
    return [_as_text(each) for each in value] if isinstance(value, list | tuple) else value


def record(serializer: str, directory: Path) -> None:
    """Crawl until all workers are dead, and store the rest of the crawl in a directory."""
    with TemporaryDirectory() as temporary, running("valkey") as server, server.client() as client:
        place = Path(temporary)
        with golden_scene(place, server, serializer) as (played, common):
            settings = {**common, **SLOW, "SCHEDULER_PERSIST": True}
            client.rpush(START.start, "/", BAD)
            (place / "killer").write_text(DEADLY)
            for worker in [played.start(name, settings) for name in ("first", "second")]:
                worker.process.wait()
            third = played.start("third", settings)
            until(lambda: bool(client.zcard(QueueKeys(QUEUE).dead_letters)))
            third.kill()
            client.rpush(START.start, LATE)
            (place / "deadly").write_text(LATE)
            (place / "hesitate").write_text("1")
            played.start("fourth", settings).process.wait()
            client.rpush(START.start, FORGOTTEN)
            fetched = sorted(played.fetched)
        _command("export", f"{directory / serializer}.export-1", server)
        _command("forget", SITE + FORGOTTEN, server)
        _command("export", f"{directory / serializer}.export-2", server)
        unsure = [_entry(serializer, path, is_unsure=path == UNSURE) for path in (SPOOLED, UNSURE)]
        SpoolDirectory(QUEUE, place).save(unsure).rename(directory / f"undelivered-{serializer}.jsonl")
        rest = {"fetched": fetched, "keys": dump(client)}
        (directory / f"{serializer}.json.gz").write_bytes(gzip.compress(json.dumps(rest).encode(), mtime=0))


def _entry(serializer: str, path: str, *, is_unsure: bool) -> OutboxEntry:
    request = Request(SITE + path)
    fingerprint = BloomRFPDupeFilter(None, "").request_fingerprint(request)
    member = load_object(f"{SERIALIZERS[serializer]}.dumps")(request.to_dict())
    return OutboxEntry(member, 0.0, fingerprint.encode(), is_unsure)


def _command(action: str, argument: str, server: Server) -> None:
    options = ("--key", KEY, "--redis-url", server.url)
    done = command.run(action, *options, argument, cwd=DATA)
    assert done.returncode == 0, done.stderr


def main() -> None:
    """Record a crawl of this release with each serializer."""
    directory = DATA / f"release-{version('scrapy-bloom')}"
    directory.mkdir()
    for serializer in SERIALIZERS:
        record(serializer, directory)
        print(f"recorded: {serializer} in {directory}", file=sys.stderr)


if __name__ == "__main__":
    main()
