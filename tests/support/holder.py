"""A filter in the hands of a queue worker, without a crawl."""

from collections.abc import Sequence

from scrapy_bloom import BloomFilter


class Holder:
    """The owner of a filter that a queue uses."""

    def __init__(self, bloom: BloomFilter) -> None:
        self.filter = bloom

    def release(self, user: str) -> bool:
        return self.filter.remove_reference(user)

    def forget(self, fingerprints: Sequence[bytes]) -> None:
        self.filter.forget_many(fingerprints)

    def note_workers(self, *, is_alone: bool) -> None:
        pass
