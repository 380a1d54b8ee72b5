"""The pace at which a filter is filled, by two looks at it."""

from dataclasses import dataclass

from scrapy_bloom.admin.report import FilterReport


@dataclass(frozen=True)
class Pace:
    """A pace over some time.

    Attributes:
        seconds: the time between both looks, by the server's clock.
        per_second: new requests a second.
        seconds_left: the time until the newest layer is full at this pace, or None: never.
    """

    seconds: float
    per_second: float
    seconds_left: float | None


def pace_between(first: FilterReport, last: FilterReport) -> Pace | None:
    """Return the pace between two looks at the same filter, or None: no time has passed."""
    seconds = last.stored.now - first.stored.now
    if seconds <= 0:
        return None
    before, now = _counts(first), _counts(last)
    added = sum(count - before.get(layer, 0) for layer, count in now.items())
    per_second = max(0.0, added / seconds)
    newest = last.info.by_layer[-1]
    room = max(0, newest.capacity - newest.estimated_count)
    return Pace(seconds, per_second, room / per_second if per_second else None)


def _counts(found: FilterReport) -> dict[int, int]:
    """Return how many requests each layer holds, by its number."""
    described = zip(found.stored.layers, found.info.by_layer, strict=False)
    return {layer.index: info.estimated_count for layer, info in described}
