"""BloomScheduler and stored requests: those of other serializers, foreign ones, and unserializable ones."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy_redis import picklecompat
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomScheduler, serializer
from scrapy_bloom.codec import misread
from scrapy_bloom.errors import ConfigError, MismatchError, WrongTypeError
from tests.support.outcomes import holders_of
from tests.support.serializers import text_to_bytes
from tests.support.servers import Server
from tests.support.waiting import until

URL = "http://shop.test/"
PICKLE, OURS = "scrapy_redis.picklecompat", "scrapy_bloom.serializer"

Opened = Callable[..., BloomScheduler]


class ShopRequest(Request):
    """A request whose constructor needs an argument that Scrapy does not store."""

    def __init__(self, url: str, shop: str, **others: Any) -> None:
        super().__init__(url, **others)
        self.shop = shop


def urls(scheduler: BloomScheduler) -> list[str]:
    """The URLs of the requests in their order, until only dead letters are left."""
    taken: list[str] = []

    def is_empty() -> bool:
        taken.extend(request.url for request in iter(scheduler.next_request, None))
        return not scheduler.has_pending_requests()

    until(is_empty)
    return taken


# The serializer of the requests that wait, that of the next worker, and whether the worker is refused.
SWITCHES = [
    (None, OURS, True),
    (OURS, None, True),
    (OURS, PICKLE, True),
    (PICKLE, OURS, True),
    (None, PICKLE, False),
    (PICKLE, None, False),
    (OURS, OURS, False),
    (OURS, text_to_bytes.__name__, True),
    (PICKLE, text_to_bytes.__name__, True),
    (PICKLE, "pickle", False),
]


@pytest.mark.parametrize(("before", "after", "is_refused"), SWITCHES)
def test_another_serializer(
    before: str | None,
    after: str | None,
    is_refused: bool,
    valkey: Server,
    opened: Opened,
) -> None:
    """A worker that cannot read the waiting requests is refused, and the queue stays; the old setting crawls it."""
    first = opened(SCHEDULER_SERIALIZER=before, SCHEDULER_PERSIST=True)
    first.enqueue_request(Request(URL + "before"))
    first.close("shutdown")
    queue = first.queue_keys.queue
    with valkey.client() as client:
        waiting = client.zrange(queue, 0, -1, withscores=True)
        if is_refused:
            writer = before or PICKLE
            with pytest.raises(ConfigError) as refused:
                opened(SCHEDULER_SERIALIZER=after)
            text = f"SCHEDULER_SERIALIZER = {after!r}: a request of the queue {queue!r} was written with {writer!r}"
            assert str(refused.value).startswith(text)
            assert f"set SCHEDULER_SERIALIZER = {writer!r} until all are fetched" in str(refused.value)
            assert client.zrange(queue, 0, -1, withscores=True) == waiting
        assert urls(opened(SCHEDULER_SERIALIZER=before if is_refused else after)) == [URL + "before"]


def test_writer_is_found_without_unpickling(tmp_path: Path) -> None:
    """A member that looks like MessagePack, and runs code as a pickle, is not unpickled to find its writer."""
    code = b"\x8c\x01a" + f"cio\nopen\n(V{tmp_path / 'made'}\nVw\ntR.".encode()
    assert misread(code, picklecompat) == OURS
    assert not (tmp_path / "made").exists()
    pickle.loads(code).close()  # noqa: S301  # the control
    assert (tmp_path / "made").exists()


def test_starting_over_with_another_serializer(opened: Opened) -> None:
    """A worker that starts over is not refused."""
    first = opened(SCHEDULER_PERSIST=True)
    first.enqueue_request(Request(URL + "before"))
    first.close("shutdown")
    worker = opened(SCHEDULER_SERIALIZER=OURS, SCHEDULER_FLUSH_ON_START=True)
    worker.enqueue_request(Request(URL + "now"))
    assert urls(worker) == [URL + "now"]


def test_json_of_another_serializer() -> None:
    """JSON is no request of ours, nor a pickle; a module that reads it may. Other bytes become dead letters later."""
    member = b'{"url": "http://shop.test/"}'
    assert [misread(member, each) for each in (picklecompat, serializer, json)] == ["", "", None]
    assert misread(b"not a request", picklecompat) is None


FIFO, LIFO = "scrapy_redis.queue.FifoQueue", "scrapy_redis.queue.LifoQueue"


@pytest.mark.parametrize("queue", [FIFO, LIFO])
def test_a_list_of_scrapy_redis(queue: str, opened: Opened, valkey: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Requests of scrapy-redis's lists are crawled in its order; another class or serializer is refused before."""
    caplog.set_level("INFO")
    named = {"SCHEDULER_QUEUE_CLASS": queue, "SCHEDULER_PERSIST": True}
    first = opened(Scheduler, **named)
    for number in range(3):
        first.enqueue_request(Request(f"{URL}{number}"))
    first.close("shutdown")
    with pytest.raises(ConfigError, match=r"SCHEDULER_QUEUE_CLASS = .* wait in a list; set the class that has written"):
        opened()
    with pytest.raises(ConfigError, match=f"SCHEDULER_SERIALIZER = '{OURS}': a request .* was written with '{PICKLE}'"):
        opened(**named, SCHEDULER_SERIALIZER=OURS)
    # The crawl would be refused behind the conversion.
    with valkey.client() as client:
        client.sadd(f"{first.df.key}:set", "to be imported")
        with pytest.raises(WrongTypeError, match="holds a SET"):
            opened(**named, SCHEDULER_DUPEFILTER_KEY=f"{first.df.key}:set")
        with pytest.raises(MismatchError):
            opened(**named, BLOOMFILTER_CAPACITY=7)
        assert client.type(first.queue.key) == b"list"
    worker = opened(**named)
    assert "Moved the requests of the list" in caplog.text
    worker.enqueue_request(Request(f"{URL}3"))
    expected = [f"{URL}{number}" for number in range(4)]
    assert urls(worker) == (expected if queue == FIFO else expected[::-1])


def test_starting_over_with_a_list(opened: Opened) -> None:
    """A worker that starts over deletes a list, also with another class."""
    first = opened(Scheduler, SCHEDULER_QUEUE_CLASS=FIFO, SCHEDULER_PERSIST=True)
    first.enqueue_request(Request(URL + "before"))
    first.close("shutdown")
    worker = opened(SCHEDULER_FLUSH_ON_START=True)
    worker.enqueue_request(Request(URL + "now"))
    assert urls(worker) == [URL + "now"]


WRITTEN = serializer.dumps(Request(URL).to_dict())
MEMBERS: dict[str, bytes] = {
    "empty": b"",
    "text": b"not a request",
    "JSON": b'{"url":"http://shop.test/"}',
    "cut off": WRITTEN[:40],
    "a pickle": pickle.dumps({"url": URL}),
    "MessagePack of another": b"\x81\xa1a\x01",
}


@pytest.mark.parametrize("setting", [OURS, None])
def test_foreign_members(setting: str | None, valkey: Server, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """Unreadable members that arrive during a crawl become dead letters, with a reason, and all else is crawled."""
    worker = opened(SCHEDULER_SERIALIZER=setting, SCHEDULER_PERSIST=True)
    keys = worker.queue_keys
    unreadable = [member for name, member in MEMBERS.items() if setting or name != "a pickle"]
    with valkey.client() as client:
        client.zadd(keys.queue, dict.fromkeys(unreadable, -5))
        worker.enqueue_request(Request(URL + "now"))
        assert urls(worker) == [URL + "now"]
        for member in unreadable:
            assert holders_of(client, keys.queue, member) == {keys.dead_letters}
    assert worker.stats.get_value("bloomfilter/dead_letters") == len(unreadable)
    assert caplog.text.count("cannot be read, and is kept as a dead letter: ") == len(unreadable)


def test_request_that_cannot_be_stored(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A request that cannot be serialized is warned of and counted, and is crawled by its own process."""
    scheduler = opened(SCHEDULER_SERIALIZER=OURS)
    item: dict[str, Any] = {"item": {"price": 1j}}
    assert scheduler.enqueue_request(Request(URL + "bad", meta=item))
    assert scheduler.enqueue_request(Request(URL + "good"))
    assert sorted(urls(scheduler)) == [URL + "bad", URL + "good"]
    assert scheduler.stats.get_value("scheduler/unserializable") == 1
    (told,) = [record.getMessage() for record in caplog.records if "/bad>" in record.getMessage()]
    assert "/bad> cannot be serialized: ValueError: meta['item']['price']: a complex cannot" in told


@pytest.mark.parametrize("setting", [OURS, None])
def test_request_that_cannot_be_read(setting: str | None, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A request of a class that cannot be built again is crawled by its own process, with its class in a warning."""
    scheduler = opened(SCHEDULER_SERIALIZER=setting)
    for number in range(2):
        scheduler.enqueue_request(ShopRequest(f"{URL}{number}", "books"))
    assert sorted(urls(scheduler)) == [f"{URL}0", f"{URL}1"]
    assert scheduler.stats.get_value("scheduler/unserializable") == 2
    assert "cannot be serialized: TypeError: ShopRequest.__init__() missing" in caplog.text
