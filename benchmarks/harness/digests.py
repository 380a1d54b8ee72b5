"""Fingerprints as scrapy-redis makes them: 40 hexadecimal characters."""

import hashlib
from collections.abc import Iterator
from itertools import count


def fingerprints() -> Iterator[str]:
    """Endless different ones, the same every time."""
    for number in count():
        yield hashlib.sha1(b"%d" % number, usedforsecurity=False).hexdigest()
