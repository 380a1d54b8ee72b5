"""Crawl times with Redis at several distances, relative to crawls without Redis."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.harness.interleaved import ratio
from benchmarks.subjects.whole_crawl import KINDS, SCRAPY


class Run(NamedTuple):
    """A kind of crawl, and the distance of Redis in its round."""

    kind: str
    distance: str


def multiples(costs: Mapping[Run, Sequence[float]], distances: Sequence[str]) -> dict[str, list[float]]:
    """Return the time of each kind of crawl at each distance, relative to Scrapy's own in the same turns."""
    return {
        kind: [ratio(costs[Run(kind, distance)], costs[Run(SCRAPY, distance)]) for distance in distances]
        for kind in KINDS
    }
