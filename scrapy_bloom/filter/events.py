"""Events in the life of a filter, and their log lines."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from scrapy_bloom._format import LimitedWarnings, as_size
from scrapy_bloom.errors import SETTING_NAMES, Names
from scrapy_bloom.filter.layer import Layer

logger = logging.getLogger(__name__)


class Events(Protocol):
    """Receives the events of a filter."""

    def on_growth(self, full: Layer, following: Layer, granted: int) -> None:
        """Layer `full`, with `granted` room, is sealed; layer `following` takes additions."""

    def on_rotation(self, ended: Layer, following: Layer) -> None:
        """A generation has ended with layer `ended`; layer `following` begins the next."""

    def on_nearly_full(self, layer: Layer, share: float, error_rate: float) -> None:
        """A filter that may not grow holds this share of its capacity."""

    def on_shards_lost(self, key: str, lost: int, shards: int) -> None:
        """Some shards of the filter were lost, and are created anew."""

    def on_forgotten_lost(self, key: str) -> None:
        """The set of forgotten items was lost: the shards that may hold them are created anew."""

    def on_replaced(self, key: str) -> None:
        """Another filter has replaced this one."""

    def on_restored(self, key: str) -> None:
        """The hash alone was lost, and is restored."""

    def on_orphaned(self, key: str) -> None:
        """Only bits of an earlier filter are left, useless without its hash."""

    def on_given_up(self, key: str) -> None:
        """The filter is lost as fast as it is created."""

    def on_close(self) -> None:
        """The process is done with the filter, at least for now."""


class LoggedEvents:
    """Logs the events of a filter, with the user's `names`.

    Eviction may repeat a loss without end: each warning is logged at most once a minute.
    """

    def __init__(self, names: Names = SETTING_NAMES, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._names = names
        self._losses = LimitedWarnings(logger, monotonic)

    def on_growth(self, full: Layer, following: Layer, granted: int) -> None:
        """Log growth."""
        logger.info(
            "The filter at %r grew: layer %d is sealed with about %s requests; layer %d takes %s more at an error rate "
            "of %.2g, in %s",
            full.key,
            full.index,
            f"{granted:,}",
            following.index,
            f"{following.capacity:,}",
            following.error_rate,
            as_size(following.size.memory_bytes),
        )

    def on_rotation(self, ended: Layer, following: Layer) -> None:
        """Log a rotation, at DEBUG: there are five in each TTL."""
        logger.debug(
            "The filter at %r began another generation: layer %d is sealed, layer %d takes additions",
            ended.key,
            ended.index,
            following.index,
        )

    def on_nearly_full(self, layer: Layer, share: float, error_rate: float) -> None:
        """Warn about a filter near or beyond its capacity."""
        logger.warning(
            "The filter at %r holds %d %% of its capacity of %s; its error rate is now %.2g. It may not grow "
            "(%s = 0): start a new filter with growth or with a larger capacity",
            layer.key,
            share * 100,
            f"{layer.capacity:,}",
            error_rate,
            self._names.option("expansion"),
        )

    def on_shards_lost(self, key: str, lost: int, shards: int) -> None:
        """Warn about lost shards."""
        self._losses.warn(
            "The filter at %r lost %d of %d shards (evicted?). The crawl continues, and may fetch their pages again",
            key,
            lost,
            shards,
        )

    def on_forgotten_lost(self, key: str) -> None:
        """Warn about a lost set of forgotten items."""
        self._losses.warn(
            "The filter at %r lost its forgotten items (deleted or evicted?), and cannot tell them from others: it "
            "begins anew. The crawl continues, and may fetch its pages again",
            key,
        )

    def on_replaced(self, key: str) -> None:
        """Warn about a replaced filter."""
        self._losses.warn(
            "The filter at %r was replaced (cleared, flushed or evicted). The crawl continues with a new filter, and "
            "may fetch the pages of the lost one again",
            key,
        )

    def on_restored(self, key: str) -> None:
        """Warn about a restored hash."""
        self._losses.warn(
            "The hash of the filter at %r was deleted or evicted, but not its bits: the hash is restored, and nothing "
            "of the filter is lost",
            key,
        )

    def on_orphaned(self, key: str) -> None:
        """Warn about orphaned bits."""
        self._losses.warn(
            "The hash of an earlier filter at %r is gone (deleted or evicted?), and its bits are useless without it: a "
            "new filter replaces them, and the crawl may fetch the earlier pages again",
            key,
        )

    def on_given_up(self, key: str) -> None:
        """Warn that every request counts as new."""
        self._losses.warn("The filter at %r is lost again and again (evicted?): every request counts as new", key)

    def on_close(self) -> None:
        """Log the number of warnings left out in the last minute."""
        self._losses.flush()
