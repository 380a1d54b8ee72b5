"""Calls, faults and losses in random orders: no item is lost, and without a loss each is new exactly once."""

import uuid
from collections.abc import Callable
from typing import NamedTuple

import pytest

from scrapy_bloom import UnavailableError
from scrapy_bloom.filter.bloom_filter import BloomFilter
from tests.support.callers import ITEMS, BrokenPromiseError, Walk
from tests.support.script_replay import replay
from tests.support.servers import Server

LOST = "request reply late"


@pytest.mark.parametrize("faults", ["", LOST, f"{LOST} rollback", f"{LOST} filter shard", f"{LOST} forget"])
def test_each_item_is_new_to_somebody(faults: str) -> None:
    """No order of lost and late packets, rollbacks and losses hides an item; without losses none is new twice."""
    for seed in range(150):
        with pytest.MonkeyPatch.context() as patch:
            Walk(seed, patch, faults=faults).run()


class Mistake(NamedTuple):
    """A wrong design, by texts in the scripts or by a change of the client, and the faults that show it."""

    faults: str
    wrong: dict[str, str] | None = None
    change: Callable[[pytest.MonkeyPatch], None] | None = None


def keep_the_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BloomFilter, "_note_contact", lambda self: setattr(self, "_contact", self._runtime.monotonic()))
    patch.setattr(BloomFilter, "_cache_until", property(lambda _: float("inf"), lambda *_: None), raising=False)


def forget_debts(patch: pytest.MonkeyPatch) -> None:
    settle = BloomFilter._settle

    def change(self: BloomFilter, call: object) -> object:
        self._unsettled = None
        return settle(self, call)  # type: ignore[arg-type]

    patch.setattr(BloomFilter, "_settle", change)


MISTAKES = {
    "a repeated call is executed again": Mistake(LOST, {"if fate == 'next' then": "if true then"}),
    "the record is not written": Mistake(LOST, {"v[3] + added), ARGV[3], ARGV[4] .. flags)": "v[3] + added))"}),
    "a record that is gone is no loss": Mistake(
        f"{LOST} rollback",
        {"if opened ~= same or last + 0 < answered + 0 then return nil end": "if not opened then return nil end"},
    ),
    "a lost shard is not told": Mistake(f"{LOST} shard", {"f.lost = f.lost + 1": ""}),
    "the cache is kept": Mistake(f"{LOST} rollback", change=keep_the_cache),
    "a call that was given up is forgotten": Mistake(LOST, change=forget_debts),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    """A walk finds each wrong design, by a broken promise or by a reply that the client refuses."""
    mistake = MISTAKES[name]

    def walk_about() -> None:
        for seed in range(300):
            with pytest.MonkeyPatch.context() as patch:
                if mistake.change:
                    mistake.change(patch)
                Walk(seed, patch, mistake.wrong, mistake.faults).run()

    with pytest.raises((BrokenPromiseError, ValueError)):
        walk_about()


def test_a_late_packet_of_a_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """It marks nothing, not even an item that was forgotten since, and no later call gets its result."""
    walk = Walk(0, monkeypatch)
    one, other = walk.callers[:2]
    assert other.add("a")
    monkeypatch.setattr(walk, "draw_fault", lambda: "late")
    with pytest.raises(UnavailableError):
        one.add("a")
    monkeypatch.undo()
    assert not one.add("a")
    assert other.forget("a")
    walk.arrive(0)
    assert one.add_many(ITEMS) == [True] * len(ITEMS)
    assert other.add_many(["a", *ITEMS]) == [True] + [False] * len(ITEMS)


@pytest.mark.parametrize("seed", range(5))
def test_replay(server: Server, seed: int) -> None:
    """The scripts have the same replies and leave the same data on a server."""
    with pytest.MonkeyPatch.context() as patch:
        (walk := Walk(seed, patch, faults=LOST)).run()
    with server.client() as client:
        assert list(replay(client, walk.server.recorded, f"test:{uuid.uuid4().hex}:".encode())) == []
