"""Compute and cache the fingerprints of requests."""

import re
from collections.abc import Callable, Collection
from hashlib import sha1

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.request import RequestFingerprinterProtocol

from scrapy_bloom.cache import TwoGenerationCache
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.text import as_bytes

# Longer URLs with bodies are not cached, which bounds the memory.
_MAX_LENGTH = 1000

# A URL of which w3lib's canonicalize_url removes at most the fragment, like most links of most sites: a lower-case host
# without a default port, a path without empty and dot segments, at most one parameter, and no escapes. The group is the
# URL without its fragment.
_PLAIN = re.compile(
    r"(https?://[a-z0-9-]+(?:\.[a-z0-9-]+)*(?::(?:[1-5]\d|[1-9])\d{3})?"
    r"/(?:[\w~-][\w.~-]*/)*(?:[\w~-][\w.~-]*)?(?:\?[\w.~-]+=[\w.~-]+)?)(?:#[!-~]*)?",
    re.ASCII,
)
# Plain URLs that another canonicalize_url is likely to change.
_PROBES = (
    "http://www.example.com/",
    "https://example.com/A/index.html?utm_source=x",
    "https://example.com/a/?PHPSESSID=0#part",
    "http://127.0.0.1:8080/~a_b-c.d/0?a..=~",
    "https://xn--bcher-kva.example/a?_b-C=-#!d",
)

# Keys of a request's meta, by which a spider says what a request counts as.
KEY_META, ALWAYS_META = "bloom_key", "bloom_always"
# Text before a bloom_key, so that no URL has its fingerprint.
_KEY_PREFIX = "bloom_key:"

Compute = Callable[[Request], str | bytes]


def fingerprint_of_key(request: Request) -> bytes:
    """Return the SHA-1 of a request's `bloom_key`, in hexadecimal as other fingerprints.

    Raises:
        ConfigError: the key is empty or no text.
    """
    key = request.meta[KEY_META]
    if not key or not isinstance(key, str):
        raise ConfigError(
            f"meta[{KEY_META!r}] = {key!r} of {request}: must be text that is not empty; set text, or remove the key, "
            "and the request counts as its URL"
        )
    return sha1((_KEY_PREFIX + key).encode(errors="surrogatepass"), usedforsecurity=False).hexdigest().encode()


def is_always(request: Request) -> bool:
    """Return whether a request's `bloom_always` makes it new in each run.

    Raises:
        ConfigError: the value is neither True nor False.
    """
    always = request.meta.get(ALWAYS_META, False)
    if not isinstance(always, bool):
        raise ConfigError(
            f"meta[{ALWAYS_META!r}] = {always!r} of {request}: must be True or False; set one, or remove the key"
        )
    return always


def plain_or(make: Compute, *, is_scrapys: bool, meta_keys: Collection[str] = ()) -> Compute:
    """Return a function with the results of `make` that computes those of GET requests to plain URLs by itself.

    canonicalize_url is most of the cost of a fingerprint, and returns a plain URL as it is. If `make` has another
    fingerprint for one of the probes, for example with another version of w3lib or Scrapy, the result is `make` itself.

    Args:
        make: computes the fingerprint of Scrapy's RequestFingerprinter or of scrapy-redis's dupefilter.
        is_scrapys: whether it is Scrapy's.
        meta_keys: requests with one of these keys in their meta are left to `make`.
    """
    head = b'{"body": "", %b"method": "GET", "url": "' % (b'"headers": {}, ' if is_scrapys else b"")
    split, has_none_of_the_keys = _PLAIN.fullmatch, frozenset(meta_keys).isdisjoint

    def compute(request: Request) -> str | bytes:
        if (
            request.method == "GET"
            and not request.body
            and (plain := split(request.url))
            and (not meta_keys or has_none_of_the_keys(request.meta))
        ):
            return sha1(head + plain[1].encode() + b'"}', usedforsecurity=False).hexdigest().encode()
        return make(request)

    return compute if all(compute(each) == as_bytes(make(each)) for each in map(Request, _PROBES)) else make


def uncached_fingerprints(make: Compute) -> Callable[[Request], bytes]:
    """Return a function that computes each fingerprint with `make`."""
    return lambda request: as_bytes(make(request))


class CachedFingerprints(TwoGenerationCache[str | tuple[str, str, bytes], bytes]):
    """A cache of fingerprints that `make` computes only from the method, the URL and the body of a request.

    The cache holds about the last `size` requests, since computing the fingerprint is most of the cost of a repeat. A
    fingerprint never changes, even if the filter does. Requests with one of the `uncached_meta_keys` in their meta are
    not cached, because their fingerprints depend on it.
    """

    def __init__(self, make: Compute, size: int, uncached_meta_keys: Collection[str] = ()) -> None:
        super().__init__(size)
        self._make = uncached_fingerprints(make)
        self._uncached_meta_keys = uncached_meta_keys

    def __call__(self, request: Request) -> bytes:
        """Return the fingerprint of a request."""
        if self._uncached_meta_keys and not request.meta.keys().isdisjoint(self._uncached_meta_keys):
            return self._make(request)
        url = request.url
        # The key is nearly always the URL alone, which is in memory anyway.
        key = url if request.method == "GET" and not request.body else (request.method, url, request.body)
        # The key is nearly always in the young generation: looking there first saves a call.
        fingerprint = self._young.get(key) or self.get(key)
        if fingerprint is None:
            fingerprint = self._make(request)
            if len(url) + len(request.body) <= _MAX_LENGTH:
                self.put(key, fingerprint)
        return fingerprint


def chosen_fingerprinter(settings: BaseSettings, crawler: Crawler | None) -> RequestFingerprinterProtocol | None:
    """Return the fingerprinter that the user has set, or None for scrapy-redis's."""
    if settings.getpriority("REQUEST_FINGERPRINTER_CLASS") == SETTINGS_PRIORITIES["default"]:
        return None
    if crawler is not None:
        return crawler.request_fingerprinter
    chosen = load_object(settings["REQUEST_FINGERPRINTER_CLASS"])
    if hasattr(chosen, "from_crawler"):
        raise ConfigError(
            f"REQUEST_FINGERPRINTER_CLASS = {settings['REQUEST_FINGERPRINTER_CLASS']!r}: it is built from a crawler, "
            "which from_settings does not know; use from_crawler or from_spider"
        )
    return chosen()  # type: ignore[no-any-return]  # load_object loads anything
