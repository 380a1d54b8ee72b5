"""Requests as JSON, for `SCHEDULER_SERIALIZER = "scrapy_bloom.serializers.json"`.

Loading a pickle executes code: with write access to Redis, an attacker has all permissions of a worker. JSON holds
only values. All values of a request are restored with their exact types. Any other value is refused with its path,
and never changed. The one exception is lxml's text, which `CrawlSpider` stores in `meta["link_text"]`: it is restored
as a plain `str`.

`loads` accepts only requests that `dumps` can write. A request names its class, which scrapy-redis imports and calls.
So the class must be a subclass of `scrapy.Request` that this process has already imported, and nothing is imported. A
class that only a callback imports is refused: import it at the top of the spider's module. A callback must be a method
name, except for the names that Python reserves, such as `__init__`.

Text, lists, small numbers and most dicts have their usual form in JSON. Other values become a tagged object, whose one
name begins with `$`: `{"$bytes": "GET"}`. A dict that looks like a tagged object becomes a `$dict`.

With write access to Redis, an attacker still chooses the URLs to fetch, including `file:` URLs, the spider's method
that gets the response, and its arguments. A request has no signature.
"""

import base64
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import ModuleType
from typing import Any

from scrapy import Request

_SETTING = f"SCHEDULER_SERIALIZER = {__name__!r}"
_PICKLE = b"\x80"

# Deeper values are refused, which bounds the recursion, and detects a value that contains itself.
_MAX_DEPTH = 100
# Larger numbers are written in hexadecimal: Python reads no decimal number of more than 4,300 digits.
_LARGE = 2**63
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
# Two surrogates that JSON would read as one character.
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_to_text = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":")).encode


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
    try:
        return _to_text(_plain(request, 0)).encode()
    except _RefusedError:
        raise ValueError(_why_refused(request)) from None


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
        request = _from_text(data if isinstance(data, str) else data.decode("ascii"))
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
        callback = request.get(role)
        is_name = type(callback) is str and callback.isidentifier()
        if callback is not None and (not is_name or (callback.startswith("__") and callback.endswith("__"))):
            raise ValueError(f"{role} = {callback!r}: must be the name of a method of the spider")


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


def _describe(data: bytes | str) -> str:
    if isinstance(data, bytes) and data.startswith(_PICKLE):
        return (
            "a request in the queue is a pickle of another serializer, which this one never reads; let workers with "
            "the other serializer finish the crawl, or start over"
        )
    return "a request in the queue was not written by this serializer"


# Values to JSON.


class _RefusedError(Exception):
    """Raised for a refused value. A second pass finds its path, so that the first pass keeps none."""


def _why_refused(parts: dict[str, Any]) -> str:
    waiting = [iter(parts.items())]
    while waiting:
        path, value = next(waiting[-1], ("", None))
        if not path:
            waiting.pop()
        elif type(value) not in _WRITERS and not _is_lxml_text(value):
            return (
                f"{path}: {_described(value)} cannot be restored from JSON; store its contents as str, bytes, int, "
                "float, bool, None, list, tuple, set, frozenset or dict, of exactly these types"
            )
        elif len(waiting) > _MAX_DEPTH:
            break
        else:
            waiting.append(_parts(path, value))
    return f"{path[:80]}: nests deeper than {_MAX_DEPTH} levels, or contains itself; store a flatter value"


def _parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the parts of a value, each with its path."""
    if isinstance(value, dict):
        yield from ((f"a key of {path}", key) for key in value)
        yield from ((f"{path}[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{path}[{number}]", each) for number, each in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((f"an element of {path}", each) for each in value)


def _described(value: object) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _is_lxml_text(value: object) -> bool:
    """Return whether a value is lxml's subclass of str, which CrawlSpider stores as the text of a link."""
    return isinstance(value, str) and type(value).__module__ == "lxml.etree"


def _plain(value: Any, depth: int) -> Any:
    writer = _WRITERS.get(type(value))
    if writer is not None and depth <= _MAX_DEPTH:
        return writer(value, depth)
    if _is_lxml_text(value):
        return _plain_text(str(value), depth)
    raise _RefusedError


def _plain_text(value: str, _: int) -> Any:
    if value.isascii() or not _HALVES.search(value):
        return value
    return {"$halves": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}


def _plain_list(values: Iterable[Any], depth: int) -> list[Any]:
    return [_plain(each, depth + 1) for each in values]


def _plain_set(values: Iterable[Any], depth: int) -> list[Any]:
    # The order of a set differs between processes.
    return sorted(_plain_list(values, depth), key=_to_text)


def _plain_dict(value: dict[Any, Any], depth: int) -> Any:
    if all(type(key) is str and (key.isascii() or not _HALVES.search(key)) for key in value):
        if len(value) != 1 or not next(iter(value)).startswith("$"):
            return {key: _plain(each, depth + 1) for key, each in value.items()}
    elif _are_headers(value):
        return {"$headers": [[part.decode() for part in (name, *values)] for name, values in value.items()]}
    return {"$dict": [[_plain(key, depth + 1), _plain(each, depth + 1)] for key, each in value.items()]}


def _are_headers(value: dict[Any, Any]) -> bool:
    """Return whether a dict maps ASCII bytes to lists of ASCII bytes, as nearly all headers do."""
    lists = value.values()
    return all(type(each) is list for each in lists) and all(
        type(part) is bytes and part.isascii() for part in chain(value, chain.from_iterable(lists))
    )


_WRITERS: dict[type, Callable[[Any, int], Any]] = {
    type(None): lambda value, _: value,
    bool: lambda value, _: value,
    int: lambda value, _: value if -_LARGE < value < _LARGE else {"$int": hex(value)},
    float: lambda value, _: value if math.isfinite(value) else {"$float": str(value)},
    str: _plain_text,
    bytes: lambda value, _: (
        {"$bytes": value.decode()} if value.isascii() else {"$base64": base64.b64encode(value).decode()}
    ),
    list: _plain_list,
    tuple: lambda value, depth: {"$tuple": _plain_list(value, depth)},
    set: lambda value, depth: {"$set": _plain_set(value, depth)},
    frozenset: lambda value, depth: {"$frozenset": _plain_set(value, depth)},
    dict: _plain_dict,
}


# JSON to values, from the inside out: the parts of an object are restored before the object.


def _from_object(found: dict[str, Any]) -> Any:
    if len(found) == 1:
        ((name, inside),) = found.items()
        if name.startswith("$"):
            if name not in _READERS:
                raise ValueError(f"{name!r} is no known type")
            kind, reader = _READERS[name]
            if type(inside) is not kind:
                raise ValueError(f"{name!r} contains {_described(inside)}")
            return reader(inside)
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_READERS: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "$int": (str, lambda text: int(text, 16)),
    "$float": (str, _FLOATS.__getitem__),
    "$halves": (str, lambda text: _from_base64(text).decode("utf-8", "surrogatepass")),
    "$bytes": (str, lambda text: text.encode("ascii")),
    "$base64": (str, _from_base64),
    "$tuple": (list, tuple),
    "$set": (list, set),
    "$frozenset": (list, frozenset),
    "$headers": (
        list,
        lambda lists: {name.encode("ascii"): [each.encode("ascii") for each in values] for name, *values in lists},
    ),
    "$dict": (list, dict),
}

_from_text = json.JSONDecoder(object_hook=_from_object, parse_constant=_refuse_constant).decode
