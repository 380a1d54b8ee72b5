"""Requests as JSON, for `SCHEDULER_SERIALIZER = "scrapy_bloom.serializers.json"`.

A pickle runs code when it is read: whoever can write to Redis can do anything that a worker can. JSON only has values.
All that a request carries comes back with its exact type. What could not is refused by its name, and never changed.
The one exception is lxml's text, which `CrawlSpider` has in `meta["link_text"]`: it comes back as plain `str`.

`loads` gives what `dumps` can have made, and nothing else. A request names its class, and scrapy-redis imports what is
named. So the class must be one of `scrapy.Request` that this process has imported already: nothing is imported, and
nothing else is called. A class that only a callback imports is refused, so import it where the spider's module begins.
A callback must be a name, and not one that Python reserves, such as `__init__`.

Who can write to Redis still decides what is fetched, `file:` URLs included. So they do on the method of the spider that
gets it, and on its arguments. Nothing in a request tells who has made it.
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
        request: what `Request.to_dict` gives.

    Returns:
        The JSON, the same for requests that are equal and in the same order.

    Raises:
        ValueError: something in it could not come back as what it is; the text says what and where.

    Example:
        >>> dumps(Request("https://example.com/", meta={"depth": 1}).to_dict())[:44]
        b'{"url":"https://example.com/","callback":nul'
        >>> dumps(Request("https://example.com/", meta={"shop": {"at": 1j}}).to_dict())
        Traceback (most recent call last):
        ValueError: meta['shop']['at']: a complex cannot come back from JSON as what it is; ...
    """
    _check(request)
    return _values.write(request).encode()


def loads(data: bytes | str) -> dict[str, Any]:
    """Return the request that was made JSON, for `scrapy.utils.request.request_from_dict`.

    Args:
        data: the JSON, as text where the client decodes replies.

    Returns:
        What `dumps` was given.

    Raises:
        ValueError: it is not what `dumps` makes, whoever has written it. Nothing was imported or executed.

    Example:
        >>> loads(dumps(Request("https://example.com/", body=b"a").to_dict()))["body"]
        b'a'
        >>> loads('{"url": "https://example.com/", "_class": "os.system"}')
        Traceback (most recent call last):
        ValueError: SCHEDULER_SERIALIZER = 'scrapy_bloom.serializers.json': ... _class = 'os.system': must be ...
    """
    try:
        # Whatever a character is that is not ASCII, it is in no JSON of ours.
        request = _values.read(data if isinstance(data, str) else data.decode("ascii"))
        _check(request)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"{_SETTING}: {_what_it_is(data)}: {type(error).__name__}: {error}") from None
    return request  # type: ignore[no-any-return]  # `_check` has seen to it


def _check(request: Any) -> None:
    """Raise ValueError for what is not the dict of a request: what `dumps` takes and what `loads` gives is the same."""
    if type(request) is not dict or type(request.get("url")) is not str:
        raise ValueError("a request is a dict with a url, as Request.to_dict gives it")
    kind = _class_of(request["_class"]) if "_class" in request else Request
    unknown = request.keys() - {*kind.attributes, "_class"}
    if unknown:
        name = min(map(str, unknown))
        raise ValueError(f"{name!r}: {kind.__name__} takes nothing of this name; add it to its `attributes`")
    for role in ("callback", "errback"):
        _check_callback(role, request.get(role))


def _class_of(path: Any) -> type[Request]:
    """Return the class of a request by its name, without importing anything."""
    module, _, name = path.rpartition(".") if type(path) is str else ("", "", "")
    there = sys.modules.get(module)
    # Not by getattr, which would have the module import what it offers.
    kind = vars(there).get(name) if isinstance(there, ModuleType) else None
    if not isinstance(kind, type) or not issubclass(kind, Request):
        raise ValueError(
            f"_class = {path!r}: must be a subclass of scrapy.Request at the top of a module that is imported "
            "already; import it where the spider's module begins"
        )
    return kind


def _check_callback(role: str, name: Any) -> None:
    is_name = type(name) is str and name.isidentifier() and not (name.startswith("__") and name.endswith("__"))
    if name is not None and not is_name:
        raise ValueError(f"{role} = {name!r}: must be the name of a method of the spider")


def _what_it_is(data: bytes | str) -> str:
    if isinstance(data, bytes) and data.startswith(_PICKLE):
        return (
            "a request in the queue is a pickle of another serialiser, which this one never reads; let workers that "
            "have the other one finish the crawl, or begin it anew"
        )
    return "a request in the queue is none that this serialiser has made"
