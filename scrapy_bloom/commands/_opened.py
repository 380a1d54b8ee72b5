"""The filter of a crawl, opened for an action that adds to it as a worker does."""

from scrapy_bloom.commands._target import Target
from scrapy_bloom.filter.bloom_filter import CrawlFilter


class OpenedFilter:
    """The filter of a target, made with the parameters that are stored, or else with those of the settings."""

    def __init__(self, target: Target) -> None:
        stored = target.read()
        wanted = target.parameters
        # Without a spider nobody knows what its settings are.
        parameters = stored.parameters if stored is not None and not target.has_spider else wanted
        self.filter = CrawlFilter(
            target.client,
            target.key,
            capacity=parameters.capacity,
            error_rate=parameters.error_rate,
            expansion=parameters.expansion,
            ttl=parameters.ttl,
            fingerprint=parameters.fingerprint,
            retry_timeout=target.wait,
        )

    def note_workers(self, *, is_alone: bool) -> None:
        """Do nothing: there is no crawl to report on."""

    def release(self, user: str) -> bool:
        """Keep the filter for a queue no more; return whether it was deleted, without any user left."""
        return self.filter.remove_user(user)
