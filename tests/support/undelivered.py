"""Spool files of workers that could not deliver their requests."""

import pickle
from pathlib import Path

from scrapy import Request

from scrapy_bloom import BloomRFPDupeFilter
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.spool.directory import SpoolDirectory


def entry(number: int, *, is_unsure: bool = False) -> OutboxEntry:
    """The entry of a request whose check by the filter may have lost its reply."""
    request = Request(f"https://example.com/{number}")
    fingerprint = BloomRFPDupeFilter(None, "").request_fingerprint(request)
    return OutboxEntry(pickle.dumps(request.to_dict()), 0.0, fingerprint.encode(), is_unsure)


def leave(directory: Path, queue: str, *numbers: int, are_unsure: bool = False) -> Path:
    """Write the file that a worker would leave with these requests."""
    return SpoolDirectory(queue, directory).save([entry(number, is_unsure=are_unsure) for number in numbers])
