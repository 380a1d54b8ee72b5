"""Crawls with Redis at several distances, and their times as multiples of the crawl that has no Redis."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.harness.interleaved import ratio
from benchmarks.subjects.whole_crawl import KINDS, SCRAPY


class Run(NamedTuple):
    """A kind of crawl, and how far Redis is, or is for those that take turns with it."""

    kind: str
    distance: str


def multiples(costs: Mapping[Run, Sequence[float]], distances: Sequence[str]) -> dict[str, list[float]]:
    """Return the time of each kind of crawl at each distance, as multiples of Scrapy's own in the same turns."""
    return {
        kind: [ratio(costs[Run(kind, distance)], costs[Run(SCRAPY, distance)]) for distance in distances]
        for kind in KINDS
    }
