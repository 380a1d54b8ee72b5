"""Requests as JSON, for `SCHEDULER_SERIALIZER = "scrapy_bloom.serializers.json"`.

Loading a pickle executes code: with write access to Redis, an attacker has all permissions of a worker. JSON holds
only values. All values of a request are restored with their exact types. Any other value is refused with its path,
and never changed. The one exception is lxml's text, which `CrawlSpider` stores in `meta["link_text"]`: it is restored
as a plain `str`.

`loads` accepts only requests that `dumps` can write. A request names its class, which scrapy-redis imports and calls.
So the class must be a subclass of `scrapy.Request` that this process has already imported, and nothing is imported. A
class that only a callback imports is refused: import it at the top of the spider's module. A callback must be a method
name, except for the names that Python reserves, such as `__init__`.

With write access to Redis, an attacker still chooses the URLs to fetch, including `file:` URLs, the spider's method
that gets the response, and its arguments. A request has no signature.
"""

import sys
from types import ModuleType
from typing import Any

from scrapy import Request

from scrapy_bloom.serializers import _values

_SETTING = f"SCHEDULER_SERIALIZER = {__name__!r}"
_PICKLE = b"\x80"


def dumps(request: dict[str, Any]) -> bytes:
    """Return a request as JSON, in ASCII.

    Args:
        request: the result of `Request.to_dict`.

    Returns:
        The JSON; equal requests with the same order of values give equal bytes.

    Raises:
        ValueError: a value cannot be restored exactly; the text has its path and its type.

    Example:
        >>> dumps(Request("https://example.com/", meta={"depth": 1}).to_dict())[:44]
        b'{"url":"https://example.com/","callback":nul'
        >>> dumps(Request("https://example.com/", meta={"shop": {"at": 1j}}).to_dict())
        Traceback (most recent call last):
        ValueError: meta['shop']['at']: a complex cannot be restored from JSON; ...
    """
    _check(request)
    return _values.write(request).encode()


def loads(data: bytes | str) -> dict[str, Any]:
    """Return a request from JSON, for `scrapy.utils.request.request_from_dict`.

    Args:
        data: the JSON; text if the client decodes replies.

    Returns:
        The dict that was passed to `dumps`.

    Raises:
        ValueError: the data cannot be a result of `dumps`. Nothing was imported or executed.

    Example:
        >>> loads(dumps(Request("https://example.com/", body=b"a").to_dict()))["body"]
        b'a'
        >>> loads('{"url": "https://example.com/", "_class": "os.system"}')
        Traceback (most recent call last):
        ValueError: SCHEDULER_SERIALIZER = 'scrapy_bloom.serializers.json': ... _class = 'os.system': must be ...
    """
    try:
        # `dumps` writes ASCII only.
        request = _values.read(data if isinstance(data, str) else data.decode("ascii"))
        _check(request)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"{_SETTING}: {_describe(data)}: {type(error).__name__}: {error}") from None
    return request  # type: ignore[no-any-return]  # `_check` requires a dict


def _check(request: Any) -> None:
    """Raise ValueError unless the value is the dict of a request, for `dumps` and for `loads`."""
    if type(request) is not dict or type(request.get("url")) is not str:
        raise ValueError("a request is a dict with a url, as Request.to_dict gives it")
    kind = _class_of(request["_class"]) if "_class" in request else Request
    unknown = request.keys() - {*kind.attributes, "_class"}
    if unknown:
        name = min(map(str, unknown))
        raise ValueError(f"{name!r}: {kind.__name__} has no such attribute; add it to the class's `attributes`")
    for role in ("callback", "errback"):
        _check_callback(role, request.get(role))


def _class_of(path: Any) -> type[Request]:
    """Return the class of a request by its name, without importing anything."""
    module, _, name = path.rpartition(".") if type(path) is str else ("", "", "")
    there = sys.modules.get(module)
    # getattr could import a submodule, or call the module's __getattr__.
    kind = vars(there).get(name) if isinstance(there, ModuleType) else None
    if not isinstance(kind, type) or not issubclass(kind, Request):
        raise ValueError(
            f"_class = {path!r}: must be a subclass of scrapy.Request at the top of a module that is already "
            "imported; import it at the top of the spider's module"
        )
    return kind


def _check_callback(role: str, name: Any) -> None:
    is_name = type(name) is str and name.isidentifier() and not (name.startswith("__") and name.endswith("__"))
    if name is not None and not is_name:
        raise ValueError(f"{role} = {name!r}: must be the name of a method of the spider")


def _describe(data: bytes | str) -> str:
    if isinstance(data, bytes) and data.startswith(_PICKLE):
        return (
            "a request in the queue is a pickle of another serializer, which this one never reads; let workers with "
            "the other serializer finish the crawl, or start over"
        )
    return "a request in the queue was not written by this serializer"
