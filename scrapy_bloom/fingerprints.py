"""What a request counts as in the filter: its fingerprint, or what its meta says."""

import logging
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
from scrapy_bloom.text import LimitedWarnings, as_bytes, get_logger

# Longer URLs are not cached, which bounds the memory.
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
# The key in a request's meta with the `bloom_key` and the URL for which it was set.
_ORIGIN = "bloom_key_of"
# Text before a bloom_key, so that no URL has its fingerprint.
_KEY_PREFIX = "bloom_key:"
_BAD_META = "meta[%r] = %r of %s: must be %s; it does not count, and the request counts as its URL"
_warnings = LimitedWarnings(get_logger(__name__))

Compute = Callable[[Request], bytes]


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

    def compute(request: Request) -> bytes:
        if (
            request.method == "GET"
            and not request.body
            and (plain := split(request.url))
            and (not meta_keys or has_none_of_the_keys(request.meta))
        ):
            return sha1(head + plain[1].encode() + b'"}', usedforsecurity=False).hexdigest().encode()
        return make(request)

    return compute if all(compute(each) == make(each) for each in map(Request, _PROBES)) else make


def in_bytes(make: Callable[[Request], str | bytes], label: str) -> Compute:
    """Return a function with the results of `make` as bytes.

    It raises a ConfigError, with this label of the user's code, for a result of another type.
    """

    def compute(request: Request) -> bytes:
        made = make(request)
        if not isinstance(made, (str, bytes)):
            raise ConfigError(f"{label}: returned {made!r} for {request}; return the fingerprint as str or bytes")
        return as_bytes(made)

    return compute


class Marks(TwoGenerationCache[str, bytes]):
    """The items of requests in the filter, of which the last ones are cached by their URLs.

    A request counts as its `bloom_key`, or by its fingerprint. So does a page that is always new, together with the
    run: it is new once in each run, and pages that link to each other end. A value of another type is logged as an
    error, and does not count: an exception here could end or hang the page that led to the request.

    Args:
        fingerprint_of: computes a fingerprint.
        size: items in the cache, since a fingerprint is most of the cost of a repeat. 0 if it may depend on anything;
            otherwise it depends on the method, the URL and the body alone, or on `meta_keys`.
        always: patterns of the URLs whose requests are always new.
        meta_keys: requests with one of these keys in their meta are not cached.
    """

    def __init__(
        self,
        fingerprint_of: Compute,
        size: int,
        always: Collection[re.Pattern[str]] = (),
        meta_keys: Collection[str] = (),
    ) -> None:
        super().__init__(size)
        self._fingerprint_of, self._always = fingerprint_of, always
        self._keys = frozenset((KEY_META, ALWAYS_META, *meta_keys))

    def __call__(self, request: Request, run: bytes) -> bytes:
        """Return the item of a request in a run of the crawl."""
        url, meta = request.url, request.meta
        is_url = request.method == "GET" and not request.body and self._keys.isdisjoint(meta)
        if is_url and (mark := self._young.get(url) or self.get(url)):
            return mark
        mark = (KEY_META in meta and self._mark_of_key(request)) or self._fingerprint_of(request)
        if (self._always or ALWAYS_META in meta) and self.is_always_new(request):
            return mark + run
        if is_url and len(url) <= _MAX_LENGTH:
            self.put(url, mark)
        return mark

    def _mark_of_key(self, request: Request) -> bytes:
        """Return the SHA-1 of a request's `bloom_key` in hexadecimal, or nothing if it does not count."""
        meta = request.meta
        key = meta[KEY_META]
        if not key or not isinstance(key, str):
            _warnings.warn(_BAD_META, KEY_META, key, request, "text that is not empty", level=logging.ERROR)
            return b""
        # A redirect keeps the meta: its target counts as its URL, and would otherwise be a repeat of the page before.
        if meta.setdefault(_ORIGIN, [key, request.url])[0] != key:
            meta[_ORIGIN] = [key, request.url]
        if meta[_ORIGIN][1] != request.url:
            return b""
        return sha1((_KEY_PREFIX + key).encode(errors="surrogatepass"), usedforsecurity=False).hexdigest().encode()

    def is_always_new(self, request: Request) -> bool:
        """Return whether a request is new in each run, by its `bloom_always` or by its URL."""
        always = request.meta.get(ALWAYS_META, False)
        if not isinstance(always, bool):
            _warnings.warn(_BAD_META, ALWAYS_META, always, request, "True or False", level=logging.ERROR)
        return always is True or any(pattern.search(request.url) for pattern in self._always)


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
