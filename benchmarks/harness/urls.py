"""Realistic URLs and fingerprints, made from numbers: reproducible and distinct."""

import hashlib
from collections.abc import Iterator
from itertools import count

_SITES = ("www.example.com", "shop.example.org", "news.example.net", "docs.example.io", "forum.example.co.uk")
_SECTIONS = ("products", "articles", "category/garden", "en/reference", "threads", "archive/2024", "tag", "users")
_WORDS = ("blue", "winter", "compact", "annual", "open", "north", "classic", "report", "chair", "guide", "kit")
_QUERIES = ("", "", "", "", "?page=2", "?sort=price&order=asc", "?ref=home", "?lang=en&view=full")
_ODD = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: multiples of it scatter (Knuth, The Art of Computer Programming, volume 3, 6.4)."""


def url(number: int) -> str:
    """Return the URL of a number."""
    scattered = number * _ODD & 0xFFFFFFFFFFFFFFFF
    site = _SITES[(scattered >> 24) % len(_SITES)]
    section = _SECTIONS[scattered >> 61]
    title = f"{_WORDS[(scattered >> 32) % len(_WORDS)]}-{_WORDS[(scattered >> 40) % len(_WORDS)]}"
    # An odd factor permutes the numbers below 2^32, so the URLs stay distinct.
    return f"https://{site}/{section}/{title}-{number * 2_654_435_761 & 0xFFFFFFFF}{_QUERIES[scattered >> 50 & 7]}"


def urls(start: int, count: int) -> list[str]:
    """Return `count` URLs, beginning with the number `start`."""
    return [url(number) for number in range(start, start + count)]


def fingerprints() -> Iterator[str]:
    """Yield endless distinct fingerprints of 40 hexadecimal characters, as scrapy-redis makes them."""
    return (hashlib.sha1(b"%d" % number, usedforsecurity=False).hexdigest() for number in count())
