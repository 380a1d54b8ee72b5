"""The cache of a worker and items that others forget meanwhile."""

from collections.abc import Sequence
from typing import Any

import pytest

from scrapy_bloom.filter import forgetting
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.filter_hash import Load, SetFieldIfAbsent
from scrapy_bloom.storage.forgotten import ForgetItems, MarkForgotten
from scrapy_bloom.storage.operation import Steps
from tests.protocol.test_forgetting import KNOWN, OTHER, adding_another, forgetting_another
from tests.protocol.test_interleavings import ITEM, SMALL
from tests.support.replayed_filter import with_cache
from tests.support.schedule_search import Search, Work

# A hash that exists once the item is forgotten.
FLAG = "flag"
UNMARKED = [*KNOWN, (0.0, adding_another)]
MARKED = [*UNMARKED, (0.0, forgetting_another), (0.0, adding_another)]


def forgetting_first(protocol: FilterProtocol) -> Steps[bool]:
    """A worker forgets the item, and raises the flag after that."""
    yield from forgetting.forget(protocol, [ITEM])
    yield [SetFieldIfAbsent(FLAG, "forgotten", "1")]
    return True


def adding_all(bloom: BaseBloomFilter) -> bool:
    """Add the item beside another one, and again; if it is forgotten by now, it must be new after one more round trip.

    Return whether the item was new as it should.
    """
    was_new = bloom.add_many([ITEM, OTHER])[0] | bloom.add(ITEM)
    [flag] = bloom._store.execute([Load(FLAG)])
    if not flag.fields:
        return True
    bloom.contains_many([b"an item that no worker has added"])
    return was_new or bloom.add(ITEM)


def outcomes(before: Sequence[tuple[float, Work]], *others: Work) -> set[bool]:
    """Return whether the item was new as it should, over all ends."""
    works = [with_cache("a worker with a cache", adding_all), forgetting_first, *others]
    return {results[0] for results in Search(SMALL, works, before=before).results()}


@pytest.mark.parametrize("before", [UNMARKED, MARKED], ids=["the first one", "another one"])
@pytest.mark.parametrize("others", [[], [adding_another]], ids=["alone", "another worker"])
def test_no_repeat_stays_cached(before: Sequence[tuple[float, Work]], others: list[Work]) -> None:
    """A worker that has met the mark of a forgotten item takes it for no repeat any more."""
    assert outcomes(before, *others) == {True}


def test_a_cache_that_is_emptied_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the replies of a batch are cached although one of them has another mark, a forgotten item stays a repeat."""

    def remember(self: BaseBloomFilter, present: Any, _: int) -> None:
        for item in present:
            self._cache.put(item, True)

    monkeypatch.setattr(BaseBloomFilter, "_remember", remember)
    assert outcomes(UNMARKED) == {True, False}


def test_marks_before_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the shards are marked before the set has the item, a forgotten item stays a repeat."""
    forget = forgetting._forget_found

    def mark_first(protocol: FilterProtocol, found: Any, *, is_first: bool) -> Steps[None]:
        steps = forget(protocol, found, is_first=is_first)
        put = next(steps)
        assert isinstance(put[0], ForgetItems)
        marks = steps.send((yield [put[0]._replace(items=())]))
        assert isinstance(marks[0], MarkForgotten)
        yield marks
        yield put

    monkeypatch.setattr(forgetting, "_forget_found", mark_first)
    assert outcomes(MARKED) == {True, False}
