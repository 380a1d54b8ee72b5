"""Failure detection: a worker judges the others by its own clock and their own leases."""

from scrapy_bloom.queue.heartbeats import FailureDetector


def seen(liveness: FailureDetector, looks: list[tuple[float, dict[str, str]]]) -> set[str]:
    """Check the workers at some times; return those suspected at the last one."""
    dead: dict[str, float] = {}
    for now, workers in looks:
        dead = liveness.silent_workers(workers, now)
    return set(dead)


def steadily(until: float, value: str = "1 0 0") -> list[tuple[float, dict[str, str]]]:
    """Checks of a silent worker, four a second."""
    return [(number / 4, {"other": value}) for number in range(int(until * 4) + 1)]


def test_silent_for_its_lease() -> None:
    """A worker whose heartbeat has not changed for longer than its lease is dead, and not before."""
    assert seen(FailureDetector(1), steadily(1)) == set()
    assert seen(FailureDetector(1), steadily(1.25)) == {"other"}


def test_looks_that_take_longer_than_a_lease() -> None:
    """On a link where each check takes twice a lease, one unchanged heartbeat does not mean death."""
    looks = [(10.0 * number, {"other": f"5 0 {number}"}) for number in range(6)]
    assert seen(FailureDetector(5), [*looks, (60.0, {"other": "5 0 5"})]) == set()
    assert seen(FailureDetector(5), [*looks, *((60.0 + 10 * number, {"other": "5 0 5"}) for number in range(3))]) == {
        "other"
    }


def test_any_change_is_a_sign_of_life() -> None:
    """Any change of the value counts as a heartbeat."""
    looks = steadily(1)
    for value in ("1 1 0", "1 0 1", "1 0v 0", "1 0 0 closing"):
        assert seen(FailureDetector(1), [*looks, (1.25, {"other": value})]) == set()


def test_its_own_lease_counts() -> None:
    """A worker's own lease counts, long or short, not that of the worker that checks."""
    assert seen(FailureDetector(1), steadily(30, "60 0 0")) == set()
    assert seen(FailureDetector(60), [(0, {"other": "1 0 0"}), *steadily(2)]) == {"other"}


def test_how_often_to_look() -> None:
    """The interval of the checks suits the shortest lease, once it is known."""
    liveness = FailureDetector(60)
    assert liveness.pause == 15
    liveness.silent_workers({"other": "2 0 0"}, 0)
    assert liveness.pause == 0.5
    liveness.silent_workers({}, 0.5)
    assert liveness.pause == 15


def test_after_a_pause_all_begin_anew() -> None:
    """After a pause, by an outage or a stop, a worker takes no other for dead at once."""
    late = [(now + 100, workers) for now, workers in steadily(1)]
    assert seen(FailureDetector(1), [*steadily(1), *late]) == set()
    assert seen(FailureDetector(1), [*steadily(1), *late, (101.25, {"other": "1 0 0"})]) == {"other"}


def test_slow_link() -> None:
    """A dead worker is found, and a live one is not, even if a check takes longer than the interval."""
    times = [number * 0.9 for number in range(10)]
    assert seen(FailureDetector(1), [(now, {"dead": "1 0 0"}) for now in times]) == {"dead"}
    for count in range(len(times)):
        beats = [(now, {"alive": f"1 0 {number // 2}"}) for number, now in enumerate(times[: count + 1])]
        assert seen(FailureDetector(1), beats) == set()


def test_outages_that_alternate() -> None:
    """Several late checks in a row count as outages, as long as those between them are on time."""
    looks = [(number * 10 + late, {"other": "1 0 0"}) for number in range(10) for late in (0, 0.25)]
    assert seen(FailureDetector(1), looks) == set()


def test_one_that_is_gone_is_forgotten() -> None:
    """A worker that returns with its old value is new."""
    liveness = FailureDetector(1)
    looks = [*steadily(1), (1.2, {}), (1.4, {"other": "1 0 0"})]
    assert seen(liveness, looks) == set()
