"""The search over all orders distinguishes exactly the states that differ."""

import itertools
import secrets

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.filter_hash import Load, SetFieldIfAbsent
from scrapy_bloom.storage.operation import Steps
from tests.support.schedule_search import Search, Work

PLAN = FilterParameters(capacity=10, error_rate=1e-4)


def drawing(protocol: FilterProtocol) -> Steps[tuple[int, ...]]:
    """Draw an epoch before and after reading the filter, and a key at the end."""
    first = secrets.randbelow(1 << 40)
    yield [Load(protocol.stack.key)]
    second = secrets.randbelow(1 << 40)
    yield [Load(protocol.stack.key)]
    return first, second, secrets.randbits(64)


def changing(text: str) -> Work:
    """Count the changes of the filter, change it, and count again."""

    def work(protocol: FilterProtocol) -> Steps[tuple[int, int]]:
        (before,) = yield [Load(protocol.stack.key)]
        yield [SetFieldIfAbsent(protocol.stack.key, text, text)]
        (after,) = yield [Load(protocol.stack.key)]
        return tuple(sum(name in "abc" for name in each.fields) for each in (before, after))  # type: ignore[return-value]  # of two

    return work


def test_what_is_drawn_depends_on_the_worker_alone() -> None:
    """In every order, replayed or not, a worker draws the same numbers, and each number once."""
    ((first, second),) = {
        (first, second) for first, second, _ in Search(PLAN, [drawing, drawing, changing("a")]).results()
    }
    assert len({*first, *second}) == 6


def test_every_order_is_tried() -> None:
    """The results of two workers are exactly those of all orders of their steps."""
    expected = set()
    for order in set(itertools.permutations("aaabbb")):
        changed: set[str] = set()
        seen: dict[str, list[int]] = {"a": [], "b": []}
        for worker in order:
            if len(seen[worker]) == 1 and worker not in changed:
                changed.add(worker)
            else:
                seen[worker].append(len(changed))
        expected.add((tuple(seen["a"]), tuple(seen["b"])))
    assert Search(PLAN, [changing("a"), changing("b")]).results() == expected


def test_what_may_be_lost_is_lost_at_every_moment() -> None:
    """A crash may precede or follow each step; a worker repeats a step whose reply is lost."""
    crashed = Search(PLAN, [changing("a"), changing("b")], crashes=1).results()
    assert {(None, (0, 1)), (None, (1, 2)), ((0, 1), None), ((1, 2), None)} <= crashed
    assert (None, None) not in crashed
    repeated = Search(PLAN, [repeating], replies=2).results()
    assert repeated == {((False, False),), ((True, False),), ((False, True),), ((True, True),)}


def repeating(protocol: FilterProtocol) -> Steps[tuple[bool, ...]]:
    """Return which of the two steps were repeated."""
    first = yield [Load(protocol.stack.key)]
    second = yield [Load(protocol.stack.key)]
    return bool(first.retried), bool(second.retried)
