"""A report on all that is stored of a crawl: its filter, each layer, its queues and their workers."""

from dataclasses import asdict, dataclass
from typing import Any

from scrapy_bloom.filter.description import describe_layers
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.filter.steps import Steps
from scrapy_bloom.filter.stored import StoredFilter, read
from scrapy_bloom.queue.inspection import QueueState


@dataclass(frozen=True)
class FilterReport:
    """A filter as it is stored, and what its bits say; `info` is that of a new one where nothing was added yet."""

    stored: StoredFilter
    info: FilterInfo

    @property
    def has_layers(self) -> bool:
        """True once something was added."""
        return bool(self.stored.layers)

    @property
    def ages(self) -> list[float]:
        """Seconds for which each layer is there, oldest first."""
        return [max(0.0, self.stored.now - layer.created) for layer in self.stored.layers]


def report(key: str) -> Steps[FilterReport | None]:
    """Return the report on the filter at a key, or None: there is none."""
    stored = yield from read(key)
    if stored is None:
        return None
    info = yield from describe_layers(stored.parameters, stored.layers, stored.is_made)
    if info.lost_shards:
        # A filter that was cleared meanwhile, or has deleted a layer whose time is over, has lost nothing.
        again = yield from read(key)
        if again is None or again.layers != stored.layers:
            return (yield from report(key))
    return FilterReport(stored, info)


def as_dict(server: str, key: str, found: FilterReport | None, queues: list[QueueState]) -> dict[str, Any]:
    """Return a report as one object; the names are those of `FilterInfo`, where it has them."""
    return {
        "server": server,
        "key": key,
        "exists": found is not None,
        **({} if found is None else _filter_as_dict(found)),
        "queues": [asdict(queue) for queue in queues],
    }


def _filter_as_dict(found: FilterReport) -> dict[str, Any]:
    described = asdict(found.info)
    layers = described.pop("by_layer")
    for layer, age in zip(layers, found.ages, strict=False):
        layer["age"] = age
    parameters = found.stored.parameters
    return {
        **described,
        "is_new": not found.has_layers,
        "expansion": parameters.expansion,
        "ttl": parameters.ttl,
        "fingerprint": parameters.fingerprint,
        "age": max(found.ages, default=0.0),
        "unfinished": found.stored.unfinished,
        "users": found.stored.users,
        "by_layer": layers,
    }
