"""A stored crawl is a promise: interrupted crawls of each release are completed, and its exports restored."""

import shutil
from pathlib import Path

import pytest
from scrapy import Request

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter
from scrapy_bloom.queue.queue_keys import QueueKeys
from tests.support import command, recorded
from tests.support.recorded import DATA, DEADLY, FORGOTTEN, KEY, PATHS, QUEUE, SERIALIZERS, SITE, START
from tests.support.scenario import assert_ended_well, keys_of
from tests.support.servers import running
from tests.support.spiders.started import BAD

pytestmark = pytest.mark.crawl

RELEASES = sorted(DATA.glob("release-*"))
every_recording = pytest.mark.parametrize(
    ("release", "serializer"),
    [pytest.param(release, each, id=f"{release.name}-{each}") for release in RELEASES for each in SERIALIZERS],
)


@every_recording
def test_interrupted_crawl_is_completed(release: Path, serializer: str, tmp_path: Path) -> None:
    """Two workers fetch the pending, leased, undelivered, forgotten and dead-lettered pages, each once."""
    stored = recorded.read(release, serializer)
    spooled = tmp_path / f"undelivered-{KEY}_queue-0.jsonl"
    shutil.copy(release / f"undelivered-{serializer}.jsonl", spooled)
    spooled.chmod(0o600)
    (tmp_path / "idle").touch()
    with running("valkey") as server, server.client() as client:
        recorded.load(client, stored["keys"])
        assert client.zcard(QueueKeys(QUEUE).dead_letters) == 1
        requeued = command.run("requeue", "--queue", QUEUE, "--redis-url", server.url, cwd=tmp_path)
        assert requeued.returncode == 0, requeued.stderr
        with recorded.golden_scene(tmp_path, server, serializer) as (played, settings):
            crawls = [worker.wait() for worker in [played.start(name, settings) for name in ("left", "right")]]
            assert PATHS - played.fetched.keys() - set(stored["fetched"]) == set()
            # The others that were fetched before were running when their worker was killed.
            assert {DEADLY, FORGOTTEN} <= played.fetched.keys()
            assert len(played.fetched.keys() & set(stored["fetched"])) <= 2 + 8
            assert played.twice == 0
        assert_ended_well(*crawls)
        assert not spooled.exists()
        assert keys_of(client, KEY) == {START.dead_letters}
        assert client.lrange(START.dead_letters, 0, -1) == [BAD.encode()]


@every_recording
@pytest.mark.parametrize("number", [1, 2])
def test_export_is_restored(release: Path, serializer: str, number: int, tmp_path: Path) -> None:
    """The filter of an export has each fetched page, except the forgotten one in format 2."""
    stored = recorded.read(release, serializer)
    file = f"{release / serializer}.export-{number}"
    with running("valkey") as server, server.client() as client:
        restored = command.run("restore", "--key", KEY, "--redis-url", server.url, file, cwd=tmp_path)
        assert restored.returncode == 0, restored.stderr
        bloom = BloomFilter(client, KEY, capacity=1000, error_rate=1e-12, fingerprint="scrapy-redis")
        fingerprint = BloomRFPDupeFilter(None, "").request_fingerprint
        new = bloom.add_many([fingerprint(Request(SITE + path)) for path in stored["fetched"]])
        is_forgotten = [number == 2 and path == FORGOTTEN for path in stored["fetched"]]
        assert new == is_forgotten
