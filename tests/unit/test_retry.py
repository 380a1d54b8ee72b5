"""Waiting for an unreachable server, on a clock set by the tests: no test sleeps."""

from collections.abc import Callable

import pytest
from redis import exceptions

from scrapy_bloom.errors import RefusedError, UnavailableError
from scrapy_bloom.runtime import Runtime
from scrapy_bloom.transport.retry import CircuitBreaker, RedisUnreachableError, retry_until


class Clock(Runtime):
    """A clock that advances only by sleeping, or by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    """The clock of a test."""
    return Clock()


def away() -> None:
    """Raise, as an unreachable server does."""
    raise exceptions.ConnectionError("Connection refused")


def failing(times: int) -> Callable[[], str]:
    """Return an attempt that fails so many times, and then succeeds."""
    left = iter(range(times))

    def attempt() -> str:
        if next(left, None) is not None:
            away()
        return "done"

    return attempt


def delays(clock: Clock, attempts: int) -> list[float]:
    """Return the seconds that a worker sleeps before each attempt after the first."""
    clock.slept = []
    assert retry_until(failing(attempts), 1e9, runtime=clock) == "done"
    return clock.slept


def test_delays_double_up_to_four_tenths_of_a_second(clock: Clock) -> None:
    """Each is once to one and a half times a backoff that doubles from 50 ms, and is 0.4 s at most."""
    backoffs = [0.05, 0.1, 0.2, 0.4, 0.4, 0.4]
    for delay, backoff in zip(delays(clock, len(backoffs)), backoffs, strict=True):
        assert backoff <= delay <= 1.5 * backoff


def test_workers_do_not_step_together(clock: Clock) -> None:
    """Workers that notice an outage at the same moment have no later attempt in common, and spread over the range."""
    one, other = delays(clock, 8), delays(clock, 8)
    assert all(sum(one[:step]) != sum(other[:step]) for step in range(1, 9))
    first = sorted(delays(clock, 1)[0] for _ in range(200))
    assert first[0] < 0.055
    assert first[-1] > 0.07
    assert len(set(first)) == 200


def test_a_worker_gives_up_after_the_timeout_and_no_later(clock: Clock) -> None:
    """The last delay is cut to the rest of the timeout."""
    with pytest.raises(UnavailableError, match=r"RETRY_TIMEOUT\) = 5") as error:
        retry_until(away, 5.0, runtime=clock)
    assert error.value.cause == "ConnectionError: Connection refused"
    assert sum(clock.slept) == pytest.approx(5.0)


def test_the_log_tells_of_a_wait_every_five_seconds(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnavailableError):
        retry_until(away, 12, runtime=clock)
    left = [float(record.getMessage().split()[-2]) for record in caplog.records]
    assert left[0] == 12
    assert 6 < left[1] <= 7
    assert 1 < left[2] <= 2
    assert len(left) == 3


def test_errors_that_are_not_waited_for(clock: Clock) -> None:
    """With a timeout of 0 the first failure is the last; a permanent error is raised at once, with advice."""
    with pytest.raises(UnavailableError):
        retry_until(away, 0, runtime=clock)
    with pytest.raises(RefusedError, match="REDIS_URL"):
        retry_until(refused, 60, runtime=clock)
    assert clock.slept == []


def refused() -> None:
    """An attempt without permission."""
    raise exceptions.AuthenticationError("invalid username-password pair")


class Worker:
    """A breaker and the number of calls through it; the server is unreachable while `is_away`."""

    def __init__(self, clock: Clock) -> None:
        self.breaker = CircuitBreaker(clock)
        self.calls = 0
        self.is_away = False

    def work(self) -> str:
        self.calls += 1
        if self.is_away:
            away()
        return "result"

    def call(self) -> str | None:
        """Return the result of a call, or None while the server is unreachable."""
        try:
            return self.breaker.call(self.work)
        except RedisUnreachableError:
            return None


@pytest.fixture
def opened(clock: Clock) -> Worker:
    """A worker whose breaker has just opened."""
    worker = Worker(clock)
    worker.is_away = True
    assert worker.call() is None
    assert (worker.calls, clock.slept) == (1, [])
    return worker


def test_a_closed_breaker_is_not_in_the_way(clock: Clock) -> None:
    """Calls go through, also after a refusal: the server is there, and the caller must change something."""
    worker = Worker(clock)
    assert worker.call() == "result"
    with pytest.raises(RefusedError):
        worker.breaker.call(refused)
    assert (worker.call(), worker.calls) == ("result", 2)


def test_an_open_breaker_calls_nobody(opened: Worker, clock: Clock) -> None:
    """For 0.4 s calls fail without the network, even if the server is back; then one of them closes the breaker."""
    opened.is_away = False
    for _ in range(5):
        assert opened.call() is None
        clock.now += 0.399 / 5
    assert opened.calls == 1
    assert opened.breaker.is_open
    clock.now += 0.6 - 0.399
    assert not opened.breaker.is_open
    assert [opened.call(), opened.call(), opened.call()] == ["result"] * 3
    assert opened.calls == 4


def test_a_probe_that_fails_keeps_it_open(opened: Worker, clock: Clock) -> None:
    """Each interval has one probe."""
    for number in range(3):
        clock.now += 0.6
        assert [opened.call(), opened.call(), opened.call()] == [None, None, None]
        assert opened.calls == 2 + number


def test_probes_of_two_workers_are_apart(clock: Clock) -> None:
    """They are let through 0.4 to 0.6 s after the failure, each at its own time."""
    pauses = set()
    for _ in range(50):
        worker, begin = Worker(clock), clock.now
        worker.is_away = True
        worker.call()
        while worker.breaker.is_open:
            clock.now += 0.001
        pauses.add(round(clock.now - begin, 3))
    assert len(pauses) > 25
    assert all(0.4 <= seconds <= 0.601 for seconds in pauses)


def test_the_log_tells_of_both_ends_once(opened: Worker, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """An outage is one line at its end, with its length, after any number of probes."""
    for _ in range(4):
        clock.now += 0.6
        opened.call()
    opened.is_away = False
    clock.now += 0.6
    opened.call()
    opened.call()
    assert caplog.messages[-1] == "Redis is back after 3.0 s; the crawl resumes"
    assert sum("is back" in message for message in caplog.messages) == 1
