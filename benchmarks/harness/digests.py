"""Fingerprints as scrapy-redis makes them: 40 hexadecimal characters."""

import hashlib
from collections.abc import Iterator
from itertools import count


def fingerprints() -> Iterator[str]:
    """Yield endless distinct fingerprints, the same in each call."""
    for number in count():
        yield hashlib.sha1(b"%d" % number, usedforsecurity=False).hexdigest()
