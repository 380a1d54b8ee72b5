"""Crawls with BLOOMFILTER_SHARED_DELAY: the workers reserve moments of one row, under each scheduler.

With a delay of an hour a test sees which moments were reserved, whatever the speed of the machine.
"""

import math
import signal
from pathlib import Path

import pytest
import redis
from scrapy.core.downloader import Slot
from scrapy.settings import default_settings

from devtools.crawl_process import Crawl, CrawlProcess
from scrapy_bloom.pace import RESERVED, WASTED
from scrapy_bloom.queue.keys import QueueKeys
from tests.support import crawling
from tests.support.extensions import SlotlessDownloader
from tests.support.faults import Place, proxying
from tests.support.outcomes import assert_complete, complaints_in
from tests.support.pages import star, tree
from tests.support.scenario import FILTER_ALONE, OURS, SCRAPY, Kind, asyncio_first, every_scheduler, scene
from tests.support.servers import Server
from tests.support.spiders import slotted
from tests.support.waiting import until

HOUR = 3600
# Since Scrapy 2.19.
JITTER = "DOWNLOAD_DELAY_JITTER" if hasattr(default_settings, "DOWNLOAD_DELAY_JITTER") else "RANDOMIZE_DOWNLOAD_DELAY"
PAGES = 25
SHARED: Kind = {"BLOOMFILTER_SHARED_DELAY": True, JITTER: 0, "LOG_LEVEL": "INFO"}
SHORT: Kind = {**SHARED, "DOWNLOAD_DELAY": 0.05}
LONG: Kind = {**SHARED, "DOWNLOAD_DELAY": HOUR}
HOST = "127.0.0.1"


def taken(client: redis.Redis, key: str, slot: str = HOST) -> int:
    """Return how many hours of a slot are reserved."""
    free = int(client.hget(QueueKeys(f"{key}:queue").of_slot(slot), "free") or 0)
    seconds, micros = client.time()
    return math.ceil((free / 1e6 - seconds - micros / 1e6) / HOUR)


def stop(*workers: CrawlProcess) -> list[Crawl]:
    """Stop workers, which wait for an hour."""
    for worker in workers:
        worker.process.send_signal(signal.SIGTERM)
    ended = [worker.wait() for worker in workers]
    assert [each.exit_code for each in ended] == [0] * len(workers)
    return ended


@asyncio_first
@every_scheduler
def test_each_request_has_a_moment(kind: Kind, reactor: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """Two workers fetch every page, each at a moment; without a delay they reserve none."""
    number = 1 if kind is SCRAPY else 2
    with scene(tree(PAGES), tmp_path, valkey.url, key, delay=0) as played:
        ended = played.crawl_by(*"ab"[:number], kind={**kind, **SHORT, **reactor})
        reserved, wasted = (sum(each.stats.get(name, 0) for each in ended) for name in (RESERVED, WASTED))
        assert reserved - wasted == len(played.site.fetched)
        assert_complete(played, *ended)
        ended = played.crawl_by("c", kind={**kind, **SHORT, "DOWNLOAD_DELAY": 0})
        assert RESERVED not in ended[0].stats
        assert_complete(played, *ended)


@every_scheduler
def test_an_hour(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """A crawl begins at once, and each worker holds one moment more, which no other has."""
    workers = 1 if kind is SCRAPY else 3
    with valkey.client() as client, scene(star(PAGES), tmp_path, valkey.url, key) as played:
        settings = {**kind, **LONG, "CONCURRENT_REQUESTS": 2, "SCHEDULER_PERSIST": True}
        started = [played.start("a", settings)]
        # Enough for each: a worker of scrapy-redis that finds nothing ends.
        until(lambda: kind is SCRAPY or client.zcard(f"{key}:queue") > 2 * workers)
        started += [played.start(name, settings) for name in "bc"[: workers - 1]]
        # A call that is repeated, since its reply was late, takes a moment that no worker holds.
        until(lambda: taken(client, key) >= workers + 1)
        assert played.site.paths == ["/"]
        if kind is OURS:
            ended = stop(*started)
            assert played.site.paths == ["/"]
            assert sum(each.stats[RESERVED] for each in ended) == workers + 1


@pytest.mark.parametrize(
    "settings",
    [
        {"DOWNLOAD_SLOTS": f'{{"{HOST}": {{"delay": {HOUR}}}}}'},
        {"AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": HOUR, "AUTOTHROTTLE_MAX_DELAY": HOUR},
    ],
    ids=["slots", "autothrottle"],
)
def test_delays_of_slots(settings: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """The delay is that of the slot, from DOWNLOAD_SLOTS or AutoThrottle."""
    with valkey.client() as client, scene(star(PAGES), tmp_path, valkey.url, key) as played:
        worker = played.start("a", {**OURS, **SHARED, **settings, "DOWNLOAD_DELAY": 0})
        until(lambda: taken(client, key) >= 1)
        stop(worker)


def test_any_name_of_a_slot(valkey: Server, key: str, tmp_path: Path) -> None:
    """A slot's name may be any text, such as a proxy's address with its password, which no log line shows."""
    with valkey.client() as client, scene(star(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = slotted.__file__
        worker = played.start("a", {**OURS, **LONG, "LOG_LEVEL": "DEBUG"})
        until(lambda: taken(client, key, slotted.SLOT) == 2 and len(played.site.fetched) == 2)
        stop(worker)
        assert "password" not in worker.log.replace("meta", "")


def test_autothrottle(valkey: Server, key: str, tmp_path: Path) -> None:
    """Each worker's AutoThrottle says what follows its own requests."""
    throttled: Kind = {**SHORT, "AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": 0.05}
    with scene(tree(PAGES), tmp_path, valkey.url, key, delay=0.02) as played:
        ended = played.crawl_by("a", "b", kind={**OURS, **throttled})
        assert_complete(played, *ended)
        assert sum(each.stats.get(RESERVED, 0) for each in ended) >= PAGES


@pytest.mark.parametrize("kind", [OURS, FILTER_ALONE], ids=["scrapy-bloom", "scrapy-redis"])
def test_redis_is_away(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """While no moment can be reserved, no request is sent; later each page is fetched. One warning tells of it."""
    with proxying(valkey.port) as proxy, scene(tree(PAGES), tmp_path, proxy.url, key, delay=0) as played:
        proxy.naming = b":pace:"
        sent: list[int] = []

        def cut(_: str) -> None:
            proxy.fail(*[Place.BEFORE, Place.AFTER, Place.REPLY] * 2)
            sent.append(len(played.site.fetched))

        played.moments.when(PAGES // 2, cut)
        ended = played.crawl({**kind, **SHORT})
        assert proxy.faults == 6
        assert_complete(played, ended)
        assert played.twice == 0
    assert len([line for line in complaints_in(ended.log) if "the downloader pauses until it answers" in line]) == 1
    assert len([line for line in complaints_in(ended.log) if "the downloader resumes" in line]) == 1


@pytest.mark.parametrize("kind", [OURS, FILTER_ALONE], ids=["scrapy-bloom", "scrapy-redis"])
def test_a_refusal(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """If Redis refuses to reserve, the crawl ends with advice, and waits for nothing."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        client.set(QueueKeys(f"{key}:queue").of_slot(HOST), "of somebody else")
        ended = played.crawl({**kind, **SHORT})
    assert ended.exit_code == 1
    assert ended.stats["finish_reason"] == "bloomfilter_error"
    assert "a key holds data of another type" in ended.log.splitlines()[-1]


@every_scheduler
def test_no_slots(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """A downloader without slots is refused, before anything is deleted."""
    path = f"{SlotlessDownloader.__module__}.{SlotlessDownloader.__qualname__}"
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        client.set(f"{key}:queue", "of another crawl")
        ended = played.crawl({**kind, **SHORT, "DOWNLOADER": path, "SCHEDULER_FLUSH_ON_START": True})
        assert client.get(f"{key}:queue") == b"of another crawl"
        assert played.site.fetched == []
    assert ended.exit_code == crawling.REFUSED_EXIT_CODE
    last = ended.log.splitlines()[-1]
    assert f"BLOOMFILTER_SHARED_DELAY = True: DOWNLOADER = '{path}' has no slots" in last


def test_what_the_hook_needs() -> None:
    """Scrapy's slots have what the hook reads."""
    slot = Slot(1, 2.0, 0)
    assert (slot.delay, slot.free_transfer_slots(), len(slot.queue), slot.download_delay()) == (2.0, 1, 0, 2.0)
