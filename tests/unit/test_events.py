"""The events of a filter: each one once, at its time."""

from collections.abc import Callable
from typing import Any, cast

from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.events import Events, LoggedEvents
from scrapy_bloom.filter.layer import NO_IDENTITY
from scrapy_bloom.filter.membership import contains
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.storage.operation import Operations, Results
from scrapy_bloom.storage.stores import MemoryStore, run_steps

KEY = "f"


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Recorder:
    """Events with their arguments, in their order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        assert hasattr(LoggedEvents, name)
        return lambda *args: self.events.append((name, args))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


class Scene:
    """A store, its clock, and workers over it; the first one's events are recorded."""

    def __init__(self, store: MemoryStore | None = None, **parameters: Any) -> None:
        self.clock = Clock()
        self.store = store or MemoryStore(self.clock)
        self._parameters = FilterParameters(**{"capacity": 10, "error_rate": 1e-3, **parameters})
        self.recorder = Recorder()
        self.bloom = self.worker(self.recorder)

    def worker(self, events: object) -> BaseBloomFilter:
        return BaseBloomFilter(
            self.store, KEY, self._parameters, cache_size=0, events=cast(Events, events), monotonic=self.clock
        )

    def add(self, number: int, name: str = "item") -> list[bool]:
        return [self.bloom.add(f"{name} {index}") for index in range(number)]


def test_nothing_happens() -> None:
    """Opening, adding and reading cause no events."""
    scene = Scene()
    scene.add(3)
    scene.bloom.info()
    scene.bloom.clear()
    scene.add(3)
    assert scene.recorder.names == []


def test_growth() -> None:
    """The full layer, the following one, and the credit granted by the first."""
    scene = Scene()
    scene.add(scene.bloom.parameters.first_layer(KEY, NO_IDENTITY, 0, 0.0).max_items + 10)
    ((name, (full, following, granted)),) = scene.recorder.events
    assert (name, full.index, following.index) == ("on_growth", 0, 1)
    assert granted == full.max_items


def test_rotation() -> None:
    """The end of a generation is not a growth."""
    scene = Scene(ttl=10.0)
    scene.add(1)
    scene.clock.now += 2.5
    scene.add(1)
    ((name, (ended, following)),) = scene.recorder.events
    assert (name, ended.index, following.index) == ("on_rotation", 0, 1)


def test_nearly_full() -> None:
    """A filter without growth reports once that it is at 80 %, and once that it is full."""
    scene = Scene(expansion=0)
    scene.add(7)
    assert scene.recorder.names == []
    scene.add(8, "other")
    assert [(name, share) for name, (_, share, _) in scene.recorder.events] == [
        ("on_nearly_full", 0.8),
        ("on_nearly_full", 1.0),
    ]


def test_shards_lost() -> None:
    """The number of lost shards, and of all."""
    scene = Scene()
    scene.add(1)
    scene.store.strings.clear()
    scene.add(1, "other")
    assert scene.recorder.events == [("on_shards_lost", (KEY, 1, 1))]


def test_replaced() -> None:
    """Another worker cleared the filter and began a new one."""
    scene = Scene()
    scene.add(1)
    other = scene.worker(Recorder())
    other.clear()
    other.add("other")
    scene.add(1)
    assert scene.recorder.events == [("on_replaced", (KEY,))]


def test_expired() -> None:
    """After an idle time in which the whole filter expired, no loss is reported."""
    scene = Scene(ttl=10.0)
    scene.add(1)
    scene.clock.now += 15.1
    assert scene.add(1) == [True]
    assert scene.add(1) == [False]
    assert scene.recorder.names == []


def test_expired_before_anything_was_added() -> None:
    """Its parameters were stored when it was opened, and have expired."""
    scene = Scene(ttl=10.0)
    scene.clock.now += 15.1
    assert scene.add(2) == [True, True]
    assert scene.recorder.names == []


def test_expired_and_begun_by_another() -> None:
    """The worker that wakes up second finds the first one's filter in place of its own, expired one."""
    scene = Scene(ttl=10.0)
    scene.add(1)
    scene.clock.now += 15.1
    other = Recorder()
    assert scene.worker(other).add("item 0")
    assert scene.add(1) == [False]
    assert other.names == scene.recorder.names == []


def test_bits_that_outlive_their_hash() -> None:
    """Bits that expire later, by a slow clock of a node, do not restore the hash."""
    scene = Scene(ttl=10.0)
    scene.add(1)
    scene.store.expiries.update(dict.fromkeys(scene.store.strings, 2_000_000))
    scene.clock.now += 15.1
    assert scene.add(1) == [True]
    assert scene.recorder.names == ["on_orphaned"]


def test_replaced_before_it_expires() -> None:
    """A filter with a TTL that is cleared before its expiry was lost."""
    scene = Scene(ttl=10.0)
    scene.add(1)
    other = scene.worker(Recorder())
    other.clear()
    other.add("other")
    scene.clock.now += 12.4
    scene.add(1)
    assert scene.recorder.events[0] == ("on_replaced", (KEY,))


def test_restored_for_as_long_as_it_was() -> None:
    """A restored hash expires at its original time, and not before its newest layer."""
    scene = Scene(ttl=10.0)
    scene.add(1)
    del scene.store.hashes[KEY]
    del scene.store.expiries[KEY]
    scene.clock.now += 6
    assert scene.add(1) == [False]
    assert scene.recorder.names[0] == "on_restored"
    # Another layer began then, at 1006.
    assert scene.store.expiries[KEY] == 1_021_000
    scene.clock.now += 15.1
    scene.store.execute([])
    assert (scene.store.hashes, scene.store.strings) == ({}, {})


def test_restored() -> None:
    """The hash alone is gone, and the next check of a worker that knows it restores it."""
    scene = Scene()
    scene.add(1)
    del scene.store.hashes[KEY]
    scene.clock.now += 6
    assert scene.add(1) == [False]
    assert scene.recorder.events == [("on_restored", (KEY,))]


def test_a_look_restores_nothing() -> None:
    """A read leaves a deleted hash deleted; the next addition restores it."""
    scene = Scene()
    scene.add(3)
    del scene.store.hashes[KEY]
    scene.clock.now += 6
    assert scene.bloom.info().estimated_count == 3
    assert scene.bloom.contains_many(["item 0", "other"]) == [True, False]
    assert (scene.recorder.events, scene.store.hashes) == ([], {})
    assert scene.add(1) == [False]
    assert scene.recorder.events == [("on_restored", (KEY,))]


def test_a_look_after_a_generation_restores_nothing() -> None:
    """A read begins no new generation in a filter whose hash is gone."""
    scene = Scene(ttl=10.0)
    scene.add(1)
    del scene.store.hashes[KEY]
    scene.clock.now += 2.5
    assert "item 0" in scene.bloom
    assert run_steps(contains(scene.bloom._protocol, [b"item 0"]), scene.store.execute) == {b"item 0"}
    assert (scene.recorder.events, scene.store.hashes) == ([], {})


def test_orphaned() -> None:
    """The hash is gone, and no worker has a copy."""
    scene = Scene()
    scene.add(1)
    del scene.store.hashes[KEY]
    newcomer = Recorder()
    scene.worker(newcomer)
    assert newcomer.events == [("on_orphaned", (KEY,))]


class EvictingStore(MemoryStore):
    """Loses every string as soon as it is created."""

    def execute(self, operations: Operations) -> Results:
        results = super().execute(operations)
        self.strings.clear()
        return results


def test_given_up() -> None:
    """A filter that is always lost at once calls all items new, and reports it once a call."""
    scene = Scene(EvictingStore())
    assert scene.add(1) == [True]
    assert scene.recorder.names.count("on_given_up") == 1
