"""A worker's registration: lease, sync number, closing flag, last heartbeat."""

import pytest

from scrapy_bloom.queue.operations import Registration

TIME = 1_700_000_000_123


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"30 7 {TIME}", Registration(30.0, 7, is_closing=False, last_heard=TIME / 1000)),
        (f"0.5 0v {TIME}", Registration(0.5, 0, is_closing=False, last_heard=TIME / 1000)),
        (f"1000 12 {TIME} closing", Registration(1000.0, 12, is_closing=True, last_heard=TIME / 1000)),
        (f"60 0 {TIME} closing flush", Registration(60.0, 0, is_closing=True, last_heard=TIME / 1000)),
        ("30 7 0", Registration(30.0, 7, is_closing=False, last_heard=None)),
        ("30 7v 31557600 closing", Registration(30.0, 7, is_closing=True, last_heard=None)),
    ],
)
def test_parse(value: str, expected: Registration) -> None:
    """Every form of a value is read; an earlier version's number of heartbeats is no time."""
    assert Registration.parse(value) == expected
