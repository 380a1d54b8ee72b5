"""From a request to the bytes that the filter stores, made anew only where that is needed."""

from collections.abc import Callable, Collection

from scrapy import Request

from scrapy_bloom.cache import Recent
from scrapy_bloom.line import as_bytes

# URLs and bodies of more characters together are not kept, which bounds the memory.
_LONGEST = 1000

Make = Callable[[Request], str | bytes]


def fresh(make: Make) -> Callable[[Request], bytes]:
    """Fingerprints by `make`, each made anew."""

    def fingerprint(request: Request) -> bytes:
        return as_bytes(make(request))

    return fingerprint


class Remembered(Recent[str | tuple[str, str, bytes], bytes]):
    """Fingerprints by `make` that depend on the method, the URL and the body of a request, and on nothing else.

    Those of the `size` requests that were met last are remembered: making one is most of what a repeat costs. A
    fingerprint never changes, so that nothing that happens to a filter makes one wrong. Requests with one of the
    `but_for` keys in their meta are those that something else matters for.
    """

    def __init__(self, make: Make, size: int, but_for: Collection[str] = ()) -> None:
        super().__init__(size)
        self._make = fresh(make)
        self._but_for = but_for

    def __call__(self, request: Request) -> bytes:
        """The fingerprint of a request."""
        if self._but_for and not request.meta.keys().isdisjoint(self._but_for):
            return self._make(request)
        url = request.url
        # Nearly all requests: the URL alone is the key, and is in memory anyway.
        key = url if request.method == "GET" and not request.body else (request.method, url, request.body)
        # Nearly always it is among the young: a call is spared.
        found = self._young.get(key) or self.get(key)
        if found is None:
            found = self._make(request)
            if len(url) + len(request.body) <= _LONGEST:
                self.put(key, found)
        return found
