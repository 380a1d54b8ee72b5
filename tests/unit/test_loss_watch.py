"""The log of a queue's losses: each is logged once, with its number where that is known."""

import itertools
import logging

import pytest

from scrapy_bloom._format import LimitedWarnings
from scrapy_bloom.monitoring.loss_watch import LossWatch
from scrapy_bloom.queue.operations import Join, QueueOperation, Reply, Status, Sync

JOIN = Join("one", "5", 3, is_new=False)
EXCHANGE = Sync("one", 4, 0)


def warnings_of_every_minute() -> LimitedWarnings:
    """A log whose lines are a minute apart, so that none is suppressed."""
    minutes = itertools.count()
    return LimitedWarnings(logging.getLogger("tests.losses"), lambda: 60.0 * next(minutes))


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture) -> LossWatch:
    """A worker that has joined a queue without losses."""
    caplog.set_level(logging.WARNING)
    watch = LossWatch("news:requests", warnings_of_every_minute())
    watch.note(JOIN, Reply(Status.OK))
    assert caplog.messages == []
    return watch


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (Status.ROLLED_BACK, "Redis went back to an earlier state"),
        (Status.PRESUMED_DEAD, "Other workers presumed this one dead"),
        # The reply with the reason was lost.
        (Status.OK, "others presumed it dead, or Redis has lost its data"),
    ],
)
def test_joined_again(watch: LossWatch, said: Status, told: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that joins again logs the reason; no request counts as lost."""
    watch.note(JOIN, Reply(said))
    (message,) = caplog.messages
    assert told in message
    assert (watch.losses, watch.lost) == (0, 0)


@pytest.mark.parametrize("operation", [JOIN, EXCHANGE])
def test_data_are_lost(watch: LossWatch, operation: QueueOperation, caplog: pytest.LogCaptureFixture) -> None:
    """The worker that finds the loss, and the others, warn of missed pages, each once."""
    said = Status.LOST if operation is JOIN else Status.OK
    for _ in range(2):
        watch.note(operation, Reply(said, loss=7))
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "Redis has lost its data" in record.message
    assert "pages missed" in record.message
    assert (watch.losses, watch.lost) == (1, 0)


def test_queue_is_lost_again(watch: LossWatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each line has all losses known to this worker, even if the queue's own count began anew."""
    for answer in (
        Reply(Status.OK, loss=7, lost=30),
        Reply(Status.OK, loss=8, lost=50),
        Reply(Status.OK, loss=9, lost=4),
    ):
        watch.note(EXCHANGE, answer)
    assert [message.split()[0] for message in caplog.messages] == ["30", "50", "54"]
    assert (watch.losses, watch.lost) == (3, 54)


def test_lost_before(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that starts is warned of earlier losses, which are not its own."""
    watch = LossWatch("news:requests", warnings_of_every_minute())
    watch.note(JOIN, Reply(Status.OK, loss=7, lost=1234))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "1,234 of them known" in record.message
    watch.note(EXCHANGE, Reply(Status.OK, loss=7, lost=1234))
    assert len(caplog.records) == 1
    assert (watch.losses, watch.lost) == (0, 0)
