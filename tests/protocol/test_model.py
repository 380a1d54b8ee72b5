"""The filter beside an exact model, through all events of its life."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.parameters import LIFETIME, FilterParameters
from tests.support.crashing import CrashError, Crashing

items = st.integers(0, 400).map(lambda number: b"%d" % number)

TTL = 100.0


class FilterBesideModel(RuleBasedStateMachine):
    """Two workers share a filter; the model knows when each item was last reported as new."""

    parameters = FilterParameters(capacity=40, error_rate=1e-4, expansion=2)

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.store = Crashing(lambda: self.now)
        self.workers = [self.opened(), self.opened()]
        self.told: dict[bytes, float] = {}
        self.doubtful: set[bytes] = set()
        self.wrong = 0

    def opened(self) -> BaseBloomFilter:
        return BaseBloomFilter(self.store, "k", self.parameters, cache_size=8, monotonic=lambda: self.now)

    def must_be_seen(self, item: bytes) -> bool:
        """Return whether the filter must know this item."""
        return item in self.told and (self.parameters.ttl is None or self.now - self.told[item] <= self.parameters.ttl)

    def may_be_new(self, item: bytes) -> bool:
        return not self.must_be_seen(item)

    def check(self, item: bytes, is_new: bool) -> None:
        if is_new:
            assert self.may_be_new(item), f"{item!r} is new a second time"
            self.told[item] = self.now
            return
        lifetime = self.parameters.ttl and self.parameters.ttl * LIFETIME
        known = item in self.told and (lifetime is None or self.now - self.told[item] <= lifetime)
        self.wrong += not known and item not in self.doubtful

    @rule(worker=st.integers(0, 1), item=items)
    def add(self, worker: int, item: bytes) -> None:
        self.check(item, self.workers[worker].add(item))

    @rule(worker=st.integers(0, 1), batch=st.lists(items, max_size=60, unique=True))
    def add_many(self, worker: int, batch: list[bytes]) -> None:
        for item, is_new in zip(batch, self.workers[worker].add_many(batch), strict=True):
            self.check(item, is_new)

    @rule(worker=st.integers(0, 1), batch=st.lists(items, max_size=20))
    def contains(self, worker: int, batch: list[bytes]) -> None:
        for item, is_seen in zip(batch, self.workers[worker].contains_many(batch), strict=True):
            assert is_seen or not self.must_be_seen(item)

    @rule(worker=st.integers(0, 1))
    def grow(self, worker: int) -> None:
        steps = self.workers[worker]._protocol
        if steps.stack.layers and len(steps.stack.layers) < 6:
            self.workers[worker]._run(steps.lifecycle.grow(steps.stack.newest))

    @rule(worker=st.integers(0, 1))
    def clear(self, worker: int) -> None:
        self.workers[worker].clear()
        # The other worker's cache is emptied by its next check of the filter, and not before.
        self.workers[1 - worker].contains_many([b"nobody adds this"])
        self.told.clear()
        self.doubtful.clear()

    @rule(worker=st.integers(0, 1))
    def reopen(self, worker: int) -> None:
        self.workers[worker] = self.opened()

    @rule(
        worker=st.integers(0, 1), batch=st.lists(items, min_size=1, max_size=60, unique=True), left=st.integers(0, 80)
    )
    def crash(self, worker: int, batch: list[bytes], left: int) -> None:
        """A worker dies before one of its operations, and its answers are lost."""
        self.store.left = left
        try:
            answers = self.workers[worker].add_many(batch)
        except CrashError:
            self.doubtful.update(batch)
            self.workers[worker] = self.opened()
        else:
            self.store.left = None
            for item, is_new in zip(batch, answers, strict=True):
                self.check(item, is_new)

    @rule(worker=st.integers(0, 1), left=st.integers(0, 20))
    def crash_while_growing(self, worker: int, left: int) -> None:
        steps = self.workers[worker]._protocol
        if not steps.stack.layers or len(steps.stack.layers) >= 6:
            return
        self.store.left = left
        try:
            self.workers[worker]._run(steps.lifecycle.grow(steps.stack.newest))
        except CrashError:
            self.workers[worker] = self.opened()
        self.store.left = None

    @precondition(lambda self: self.parameters.ttl is not None)
    @rule(seconds=st.sampled_from([1.0, 19.0, 20.0, 50.0, 130.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def error_rate_is_in_bounds(self) -> None:
        """At 1e-4 a handful of wrong answers in one short run does not happen."""
        assert self.wrong <= 3


class AgeingBesideModel(FilterBesideModel):
    """The same with a TTL."""

    parameters = FilterParameters(capacity=40, error_rate=1e-4, expansion=2, ttl=TTL)


TestFilter = FilterBesideModel.TestCase
TestFilter.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAgeing = AgeingBesideModel.TestCase
TestAgeing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
