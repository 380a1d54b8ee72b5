"""Requests as MessagePack, for `SCHEDULER_SERIALIZER = "scrapy_bloom.serializer"`.

Loading a pickle executes code: with write access to Redis, an attacker has all permissions of a worker. MessagePack
holds only values. All values of a request are restored with their exact types. Any other value is refused with its
path, and never changed. The one exception is lxml's text, which `CrawlSpider` stores in `meta["link_text"]`: it is
restored as a plain `str`.

`loads` accepts only values that `dumps` writes. A request names its class, which scrapy-redis imports and calls. So the
class must be a subclass of `scrapy.Request` that this process has already imported, and nothing is imported. A class
that only a callback imports is refused: import it at the top of the spider's module. A callback must be a method name,
except for the names that Python reserves, such as `__init__`.

MessagePack has None, bool, int up to 64 bits, float, str, bytes, list and dict. A larger integer is an extension value.
A tuple, a set and a frozenset are lists whose first element is an empty extension value, so that nesting needs no
nested decoder, and a few kilobytes of hostile data cannot exhaust the stack.

With write access to Redis, an attacker still chooses the URLs to fetch, including `file:` URLs, the spider's method
that gets the response, and its arguments. A request has no signature.
"""

import sys
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import chain
from types import ModuleType, NoneType
from typing import Any

import msgpack
from scrapy import Request

# A lone surrogate is text as well.
_SURROGATES = "surrogatepass"
# Deeper values are refused, which bounds the recursion, and detects a value that contains itself.
_MAX_DEPTH = 100
_SCALARS = frozenset({NoneType, bool, int, float, str, bytes})
_CONTAINERS = frozenset({list, dict, tuple, set, frozenset})
# The codes of the extension values.
_MARKED: dict[int, type] = {0: tuple, 1: set, 2: frozenset}
_MARKS = {kind: msgpack.ExtType(code, b"") for code, kind in _MARKED.items()}
_LARGE_INT = 3
# The bytes that begin one, or a timestamp. Other data holds only values of the types that msgpack has.
_EXTENSIONS = b"\xc7\xc8\xc9\xd4\xd5\xd6\xd7\xd8"


def dumps(request: dict[str, Any]) -> bytes:
    r"""Return a request as MessagePack.

    Args:
        request: the result of `Request.to_dict`.

    Returns:
        The bytes; equal requests with the same order of values give equal bytes, in each process.

    Raises:
        ValueError: a value cannot be restored exactly; the text has its path and its type.

    Example:
        >>> dumps(Request("https://example.com/", meta={"depth": 1}).to_dict())[:26]
        b'\x8d\xa3url\xb4https://example.com/'
        >>> dumps(Request("https://example.com/", meta={"shop": {"at": 1j}}).to_dict())
        Traceback (most recent call last):
        ValueError: meta['shop']['at']: a complex cannot be restored; ...
    """
    _check(request)
    _require_plain(request)
    return _pack(request)


def loads(data: bytes) -> dict[str, Any]:
    """Return a request from MessagePack, for `scrapy.utils.request.request_from_dict`.

    Args:
        data: the bytes of a request.

    Returns:
        The dict that was passed to `dumps`.

    Raises:
        ValueError: the data cannot be a result of `dumps`. Nothing was imported or executed.

    Example:
        >>> loads(dumps(Request("https://example.com/", body=b"a").to_dict()))["body"]
        b'a'
        >>> loads(b"not a request")
        Traceback (most recent call last):
        ValueError: SCHEDULER_SERIALIZER = 'scrapy_bloom.serializer': a request in the queue was not written by ...
    """
    try:
        if data.translate(None, _EXTENSIONS) == data:
            request: dict[str, Any] = _unpack(data)
            _check(request)
        else:
            request = _unpack(data, ext_hook=_from_extension, list_hook=_from_list)
            _check(request)
            _require_plain(request)
    except (ValueError, TypeError, LookupError, RecursionError, msgpack.UnpackException) as error:
        writer = "is a pickle, and was" if data[:1] == b"\x80" else "was"
        raise ValueError(
            f"SCHEDULER_SERIALIZER = {__name__!r}: a request in the queue {writer} not written by this serializer: "
            f"{type(error).__name__}: {error}"
        ) from None
    return request


def _check(request: Any) -> None:
    """Raise ValueError unless the value is the dict of a request, for `dumps` and for `loads`."""
    if type(request) is not dict or type(request.get("url")) is not str:
        raise ValueError("a request is a dict with a url, as Request.to_dict gives it")
    kind: Any = _class_of(request["_class"]) if "_class" in request else Request
    if not _names(kind).issuperset(request):
        name = min(map(str, request.keys() - _names(kind)))
        raise ValueError(f"{name!r}: {kind.__name__} has no such attribute; add it to the class's `attributes`")
    for role in ("callback", "errback"):
        if (callback := request.get(role)) is not None:
            is_name = type(callback) is str and callback.isidentifier()
            if not is_name or (callback.startswith("__") and callback.endswith("__")):
                raise ValueError(f"{role} = {callback!r}: must be the name of a method of the spider")


@cache
def _names(kind: type[Request]) -> frozenset[str]:
    return frozenset({*kind.attributes, "_class"})


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


def _require_plain(request: dict[str, Any]) -> None:
    """Raise ValueError for a value that is not restored exactly; msgpack alone takes bytearray and others."""
    if not _is_plain(request.values(), 1):
        raise ValueError(next(chain.from_iterable(_refusals(*part, 1) for part in request.items())))


def _is_plain(values: Iterable[Any], depth: int) -> bool:
    for value in values:
        kind = type(value)
        if kind in _SCALARS:
            continue
        if kind not in _CONTAINERS:
            if not _is_link_text(value):
                return False
        elif value and (
            depth > _MAX_DEPTH
            or not _is_plain(value, depth + 1)
            or (kind is dict and not _is_plain(value.values(), depth + 1))
        ):
            return False
    return True


def _refusals(path: str, value: Any, depth: int) -> Iterator[str]:
    """Yield the path and the reason of each value that `_is_plain` finds."""
    kind = type(value)
    if kind in _CONTAINERS and value and depth > _MAX_DEPTH:
        yield f"{path[:80]}: nests deeper than {_MAX_DEPTH} levels, or contains itself; store a flatter value"
    elif kind in _CONTAINERS:
        parts = [(f"{path}[{number}]", part) for number, part in enumerate(value)]
        if kind is dict:
            parts = [(f"a key of {path}", key) for key in value] + [(f"{path}[{key!r}]", value[key]) for key in value]
        yield from chain.from_iterable(_refusals(*part, depth + 1) for part in parts)
    elif kind not in _SCALARS and not _is_link_text(value):
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        yield (
            f"{path}: {'an' if name[0] in 'aeiou' else 'a'} {name} cannot be restored; store its contents as str, "
            "bytes, int, float, bool, None, list, tuple, set, frozenset or dict, of exactly these types"
        )


def _is_link_text(value: Any) -> bool:
    """Return whether a value is the text that CrawlSpider stores of a link, a subclass of str."""
    return isinstance(value, str) and type(value).__module__ == "lxml.etree"


def _extend(value: Any) -> Any:
    """Return the stand-in of a value whose type msgpack lacks."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return msgpack.ExtType(_LARGE_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    # The order of a set differs between processes.
    return [_MARKS[type(value)], *(value if isinstance(value, tuple) else sorted(value, key=_rank))]


def _rank(value: Any) -> bytes:
    """Return bytes that order the elements of a set."""
    if isinstance(value, (tuple, frozenset)):
        parts = [*map(_rank, value)]
        return _pack([type(value).__name__, *(parts if isinstance(value, tuple) else sorted(parts))])
    return _pack(value)


def _pack(value: Any) -> bytes:
    try:
        packed: bytes = msgpack.Packer(default=_extend, strict_types=True).pack(value)
    except UnicodeEncodeError:
        packed = msgpack.Packer(default=_extend, strict_types=True, unicode_errors=_SURROGATES).pack(value)
    return packed


_unpack = partial(msgpack.unpackb, strict_map_key=False, unicode_errors=_SURROGATES)


def _from_extension(code: int, data: bytes) -> Any:
    return int.from_bytes(data, "big", signed=True) if code == _LARGE_INT else _MARKED[code]


def _from_list(values: list[Any]) -> Any:
    return values[0](values[1:]) if values and type(values[0]) is type else values
