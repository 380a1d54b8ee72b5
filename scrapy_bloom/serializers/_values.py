"""Convert Python values to JSON and back, with their exact types.

Text, lists, small numbers and most dicts have their usual form in JSON. Other values become a tagged object, whose one
name begins with `$`: `{"$bytes": "GET"}`. A dict that looks like a tagged object becomes a `$dict`.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

# Deeper values are refused, which bounds the recursion, and detects a value that contains itself.
_MAX_DEPTH = 100
# Larger numbers are written in hexadecimal: Python reads no decimal number of more than 4,300 digits.
_LARGE = 2**63
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
# Two surrogates that JSON would read as one character.
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")

_to_text = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":")).encode


def write(parts: dict[str, Any]) -> str:
    """Return named values as JSON in ASCII; equal values in the same order give equal text.

    Raises:
        ValueError: a part of a value cannot be restored exactly; the text has its path.
    """
    try:
        return _to_text(_plain(parts, 0))
    except _RefusedError:
        raise ValueError(_why_refused(parts)) from None


def read(text: str) -> Any:
    """Return the value in a text of `write`; any other text raises some error."""
    return _from_text(text)


class _RefusedError(Exception):
    """Raised for a refused value. A second pass finds its path, so that the first pass keeps none."""


def _why_refused(parts: dict[str, Any]) -> str:
    waiting = [iter(parts.items())]
    while waiting:
        path, value = next(waiting[-1], ("", None))
        if not path:
            waiting.pop()
        elif not _is_known(value):
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


def _is_known(value: object) -> bool:
    return type(value) in _WRITERS or _is_lxml_text(value)


def _is_lxml_text(value: object) -> bool:
    """Return whether a value is lxml's subclass of str, which CrawlSpider stores as the text of a link."""
    return isinstance(value, str) and type(value).__module__ == "lxml.etree"


# Values to JSON.


def _plain(value: Any, depth: int) -> Any:
    writer = _WRITERS.get(type(value))
    if writer is not None and depth <= _MAX_DEPTH:
        return writer(value, depth)
    if _is_lxml_text(value):
        return _plain_text(str(value), depth)
    raise _RefusedError


def _as_it_is(value: Any, _: int) -> Any:
    return value


def _plain_int(value: int, _: int) -> Any:
    return value if -_LARGE < value < _LARGE else {"$int": hex(value)}


def _plain_float(value: float, _: int) -> Any:
    return value if math.isfinite(value) else {"$float": str(value)}


def _plain_text(value: str, _: int) -> Any:
    if value.isascii() or not _HALVES.search(value):
        return value
    return {"$halves": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}


def _plain_bytes(value: bytes, _: int) -> Any:
    return {"$bytes": value.decode()} if value.isascii() else {"$base64": base64.b64encode(value).decode()}


def _plain_list(value: list[Any], depth: int) -> Any:
    return [_plain(each, depth + 1) for each in value]


def _plain_tuple(value: tuple[Any, ...], depth: int) -> Any:
    return {"$tuple": [_plain(each, depth + 1) for each in value]}


def _plain_set(value: set[Any], depth: int) -> Any:
    # The order of a set differs between processes.
    return {"$set": sorted((_plain(each, depth + 1) for each in value), key=_to_text)}


def _plain_frozenset(value: frozenset[Any], depth: int) -> Any:
    return {"$frozenset": sorted((_plain(each, depth + 1) for each in value), key=_to_text)}


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
    type(None): _as_it_is,
    bool: _as_it_is,
    int: _plain_int,
    float: _plain_float,
    str: _plain_text,
    bytes: _plain_bytes,
    list: _plain_list,
    tuple: _plain_tuple,
    set: _plain_set,
    frozenset: _plain_frozenset,
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


def _to_int(text: str) -> int:
    return int(text, 16)


def _from_ascii(text: str) -> bytes:
    return text.encode("ascii")


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _from_halves(text: str) -> str:
    return _from_base64(text).decode("utf-8", "surrogatepass")


def _to_headers(lists: list[list[str]]) -> dict[bytes, list[bytes]]:
    return {name.encode("ascii"): [each.encode("ascii") for each in values] for name, *values in lists}


_READERS: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "$int": (str, _to_int),
    "$float": (str, _FLOATS.__getitem__),
    "$halves": (str, _from_halves),
    "$bytes": (str, _from_ascii),
    "$base64": (str, _from_base64),
    "$tuple": (list, tuple),
    "$set": (list, set),
    "$frozenset": (list, frozenset),
    "$headers": (list, _to_headers),
    "$dict": (list, dict),
}

_from_text = json.JSONDecoder(object_hook=_from_object, parse_constant=_refuse_constant).decode
