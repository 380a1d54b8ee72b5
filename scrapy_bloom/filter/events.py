"""Events of a filter, and the texts of its log, apart from the steps in which they happen."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from scrapy_bloom._format import as_size
from scrapy_bloom._log import LimitedWarnings
from scrapy_bloom._names import SETTINGS, Names
from scrapy_bloom.filter.layer import Layer

logger = logging.getLogger(__name__)


class Events(Protocol):
    """The things that can happen to a filter."""

    def on_growth(self, full: Layer, following: Layer, granted: int) -> None:
        """Tell that a layer with room for `granted` items is full, and which one follows."""

    def on_rotation(self, ended: Layer, following: Layer) -> None:
        """Tell that a generation has ended, and which layer begins the next."""

    def on_nearly_full(self, layer: Layer, share: float, error_rate: float) -> None:
        """Tell that a filter which may not grow holds this share of its capacity."""

    def on_shards_lost(self, key: str, lost: int, shards: int) -> None:
        """Tell that some of the filter's shards were gone, and are made anew."""

    def on_replaced(self, key: str) -> None:
        """Tell that another filter has taken this one's place."""

    def on_restored(self, key: str) -> None:
        """Tell that the hash alone was gone, and is put back."""

    def on_orphaned(self, key: str) -> None:
        """Tell that only the bits of an earlier filter are left, which say nothing without its hash."""

    def on_given_up(self, key: str) -> None:
        """Tell that the filter is lost as fast as it is made."""

    def on_close(self) -> None:
        """Tell that the process is done with the filter, at least for now."""


class LoggedEvents:
    """Writes what happens to a filter to the log, with the user's `names`.

    Losses, which an eviction may repeat without end, are logged once a minute.
    """

    def __init__(self, names: Names = SETTINGS, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._names = names
        self._losses = LimitedWarnings(logger, monotonic)

    def on_growth(self, full: Layer, following: Layer, granted: int) -> None:
        """Log that a layer is full, and which one follows."""
        logger.info(
            "The filter at %r grew: layer %d holds about %s requests and is sealed; layer %d takes %s more at an error "
            "rate of %.2g, in %s",
            full.key,
            full.index,
            f"{granted:,}",
            following.index,
            f"{following.capacity:,}",
            following.error_rate,
            as_size(following.size.memory_bytes),
        )

    def on_rotation(self, ended: Layer, following: Layer) -> None:
        """Log that a generation has ended: only for those who ask, since it happens five times in each TTL."""
        logger.debug(
            "The filter at %r began another generation: layer %d is sealed, layer %d takes additions",
            ended.key,
            ended.index,
            following.index,
        )

    def on_nearly_full(self, layer: Layer, share: float, error_rate: float) -> None:
        """Warn of a filter that may not grow and holds this share of its capacity."""
        logger.warning(
            "The filter at %r holds %d %% of its capacity of %s; its error rate is now %.2g. It may not grow "
            "(%s = 0): begin a new one that may, or with a larger capacity",
            layer.key,
            share * 100,
            f"{layer.capacity:,}",
            error_rate,
            self._names.option("expansion"),
        )

    def on_shards_lost(self, key: str, lost: int, shards: int) -> None:
        """Warn of shards that were gone."""
        self._losses.warn(
            "The filter at %r lost %d of %d shards (evicted?). The crawl goes on, and may fetch again what they knew",
            key,
            lost,
            shards,
        )

    def on_replaced(self, key: str) -> None:
        """Warn that another filter has taken this one's place."""
        self._losses.warn(
            "The filter at %r was replaced (cleared, flushed or evicted). The crawl goes on with a new one, and may "
            "fetch again what the lost one knew",
            key,
        )

    def on_restored(self, key: str) -> None:
        """Warn that the hash was gone and is put back."""
        self._losses.warn(
            "The hash of the filter at %r was deleted or evicted, and its bits were not: it is put back, and nothing "
            "of the filter is lost",
            key,
        )

    def on_orphaned(self, key: str) -> None:
        """Warn of bits that say nothing any more."""
        self._losses.warn(
            "The hash of an earlier filter at %r is gone (deleted or evicted?), and without it its bits say nothing: "
            "a new filter takes their place, and what that one knew may be fetched again",
            key,
        )

    def on_given_up(self, key: str) -> None:
        """Warn that nobody can know any more what is new."""
        self._losses.warn("The filter at %r is lost again and again: all is new", key)

    def on_close(self) -> None:
        """Log how often data were lost since the last line about it."""
        self._losses.flush()
