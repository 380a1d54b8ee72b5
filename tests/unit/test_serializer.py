"""Requests as MessagePack: an exact round trip, or a refusal; reading imports and executes nothing."""

import collections
import datetime
import enum
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import HtmlResponse, JsonRequest, XmlRpcRequest
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.request import request_from_dict

from scrapy_bloom.serializer import dumps, loads

URL = "https://shop.test/"


class Code(enum.IntEnum):
    FINE = 200


class Text(str):
    __slots__ = ()


class Point(NamedTuple):
    x: int


class Marked(Request):
    """A user's request class with an attribute of its own."""

    attributes = (*Request.attributes, "mark")

    def __init__(self, *args: Any, mark: object = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mark = mark


class Chatty(Request):
    """A request whose dict has more than its constructor takes."""

    def to_dict(self, *, spider: Spider | None = None) -> dict[str, Any]:
        return {**super().to_dict(spider=spider), "extra": 1}


class ShopSpider(Spider):
    name = "shop"

    def parse_item(self, response: object) -> None:
        """Take an item."""

    def failed(self, failure: object) -> None:
        """Take a failure."""


def exactly(value: Any) -> object:
    """Return a value with its types, all of which compare; a set in one order, a dict in its own."""
    if isinstance(value, dict):
        return type(value), [(exactly(key), exactly(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [exactly(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted((exactly(each) for each in value), key=repr)
    # Minus zero is another float, and NaN equals itself.
    return type(value), repr(value) if isinstance(value, float) else value


def request_with(value: object) -> dict[str, Any]:
    """The dict of a request with a value in its meta."""
    return Request(URL, meta={"it": value}).to_dict()


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers() | st.integers(min_value=2**62) | st.integers(max_value=-(2**62)),
    st.floats(),
    # With surrogates, which hypothesis leaves out otherwise.
    st.text(st.characters()) | st.text(st.characters(categories=["Cs"])),
    st.binary(),
)
HASHABLE = st.recursive(PLAIN, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.sets(HASHABLE, max_size=3) | st.frozensets(HASHABLE, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3),
    ),
    max_leaves=12,
)
REQUESTS = st.builds(
    Request,
    st.just(URL),
    headers=st.dictionaries(st.binary(min_size=1), st.lists(st.binary(), max_size=3)),
    body=st.binary(),
    cookies=st.dictionaries(st.text(), st.text()) | st.lists(st.dictionaries(st.text(), st.text() | st.booleans())),
    meta=st.dictionaries(HASHABLE, VALUES, max_size=3),
    cb_kwargs=st.dictionaries(st.text(), VALUES, max_size=3),
    priority=st.integers(),
    flags=st.lists(st.text()),
).map(Request.to_dict)


@given(request=REQUESTS)
@example(request=request_with([2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 2**20_000, -(2**20_000)]))
@example(request=request_with({"\ud800\udc00": "\udc00\ud800", True: [1, 1.0, (), set(), frozenset(), b"", ""]}))
@example(request=Request(URL, body=b"\xc7\xd6\xff" * 2_000_000).to_dict())
@example(request=Request(URL, meta={"many": [*range(100_000)]}).to_dict())
def test_values_come_back(request: dict[str, Any]) -> None:
    """All values of a request are restored exactly, and are written again as the same bytes."""
    stored = dumps(request)
    assert exactly(loads(stored)) == exactly(request)
    assert dumps(loads(stored)) == stored


@pytest.mark.parametrize(
    "request_",
    [
        Request(URL),
        FormRequest(URL, formdata={"a": "b"}),
        JsonRequest(URL, data={"a": 1}, dumps_kwargs={"indent": 2, "separators": (",", ":")}),
        XmlRpcRequest(URL, params=("a",), methodname="do"),
        Marked(URL, mark=(b"\xff", {1: 2})),
    ],
    ids=lambda request: type(request).__name__,
)
def test_kinds_of_requests(request_: Request) -> None:
    """A request comes back with its class, its callbacks and its class's attributes."""
    spider = ShopSpider()
    request = request_.replace(callback=spider.parse_item, errback=spider.failed)
    there = request_from_dict(loads(dumps(request.to_dict(spider=spider))), spider=spider)
    assert type(there) is type(request)
    assert exactly(there.to_dict(spider=spider)) == exactly(request.to_dict(spider=spider))
    assert (there.callback, there.errback) == (spider.parse_item, spider.failed)


def test_same_bytes_in_each_process() -> None:
    """The same request is the same member of the queue under every hash seed."""
    value = "{*'abcdef', 1, (2, frozenset('ab')), frozenset({frozenset('abcd'), frozenset('abce'), frozenset('abcf')})}"
    program = (
        "from scrapy import Request; from scrapy_bloom.serializer import dumps; import sys;"
        f"sys.stdout.buffer.write(dumps(Request({URL!r}, meta={{'it': {value}}}).to_dict()))"
    )
    stored = {
        subprocess.check_output(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        )
        for seed in "123"
    }
    assert len(stored) == 1


def test_link_text() -> None:
    """The text of a link, which CrawlSpider puts into meta, is lxml's and comes back as plain text."""
    (link,) = LinkExtractor().extract_links(HtmlResponse(URL, body=b"<a href='/x'>There</a>"))
    assert type(link.text) is not str
    assert exactly(loads(dumps(request_with([link.text])))["meta"]["it"]) == exactly(["There"])


HERE = rf"a {__name__}"
REFUSED: dict[str, tuple[object, str]] = {
    "an object": (object(), r"meta\['it'\]: an object"),
    "a callable": (len, r"meta\['it'\]: a builtin_function_or_method"),
    "deep": ({"a": [1, (2, {"b": 1j})]}, r"meta\['it'\]\['a'\]\[1\]\[1\]\['b'\]: a complex"),
    "a date": (datetime.date(2026, 1, 1), r"meta\['it'\]: a datetime.date"),
    "an aware time": (datetime.datetime.now(datetime.UTC), r"meta\['it'\]: a datetime.datetime"),
    "IntEnum": (Code.FINE, rf"meta\['it'\]: {HERE}.Code"),
    "str": ([Text("a")], rf"meta\['it'\]\[0\]: {HERE}.Text"),
    "namedtuple": (Point(1), rf"meta\['it'\]: {HERE}.Point"),
    "OrderedDict": (collections.OrderedDict(a=1), r"meta\['it'\]: a collections.OrderedDict"),
    "a key": ({(1, Code.FINE): 2}, rf"a key of meta\['it'\]\[1\]: {HERE}.Code"),
    "an element": ({Code.FINE}, rf"meta\['it'\]\[0\]: {HERE}.Code"),
    # msgpack itself would restore these as other types.
    "bytearray": (bytearray(b"a"), r"meta\['it'\]: a bytearray"),
    "memoryview": ({memoryview(b"a"): 1}, r"a key of meta\['it'\]: a memoryview"),
    "ExtType": (msgpack.ExtType(0, b""), r"meta\['it'\]: a msgpack.ext.ExtType"),
    "Timestamp": ([msgpack.Timestamp(1)], r"meta\['it'\]\[0\]: a msgpack.ext.Timestamp"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_could_not_come_back(what: str) -> None:
    """A value that would change its type is refused, with its type, its place, and the correction."""
    value, part = REFUSED[what]
    with pytest.raises(ValueError, match=f"^{part} cannot be restored; store its contents as str, bytes"):
        dumps(request_with(value))


@pytest.mark.parametrize(
    "wrap", [lambda it: [it], lambda it: (it,), lambda it: {"a": it}, lambda it: frozenset({it, 1})]
)
def test_depth(wrap: Callable[[Any], Any]) -> None:
    """A value of the maximum depth comes back; a deeper value and a cycle are refused."""
    deepest: Any = (0,)
    for _ in range(98):
        deepest = wrap(deepest)
    assert exactly(loads(dumps(request_with(deepest)))) == exactly(request_with(deepest))
    itself: list[Any] = [1]
    itself += [itself, itself]
    for value in (wrap(deepest), itself):
        with pytest.raises(ValueError, match=r"^meta.*: nests deeper than 100 levels, or contains itself"):
            dumps(request_with([value, value]))


def packed(**parts: object) -> bytes:
    """A request with further parts, as any client can write it."""
    return bytes(msgpack.packb({"url": URL, **parts}))


def mark(code: int, data: bytes = b"") -> msgpack.ExtType:
    return msgpack.ExtType(code, data)


FOREIGN: dict[str, tuple[Any, str]] = {
    "nothing": (b"", "incomplete"),
    "text": ("text", "TypeError"),
    "text as bytes": (b"not a request", "ExtraData"),
    "JSON": (b'{"url":"https://shop.test/"}', "ExtraData"),
    "a pickle": (pickle.dumps(request_with(1), protocol=-1), "is a pickle, and was not written by"),
    "cut off": (packed()[:-1], "incomplete"),
    "with more behind": (packed() + b"\0", "ExtraData"),
    "a list": (msgpack.packb([]), "a request is a dict"),
    "no URL": (msgpack.packb({}), "a request is a dict"),
    "a URL that is none": (packed(url=b"a"), "a request is a dict"),
    "an unknown key": (packed(extra=1), "'extra': Request has no such attribute"),
    "a key that is none": (msgpack.packb({"url": URL, 1: 2}), "'1': Request has no such attribute"),
    "a function": (packed(_class="os.system"), "_class = 'os.system': must be a subclass of scrapy.Request"),
    "another class": (packed(_class="subprocess.Popen"), "_class = 'subprocess.Popen': must be"),
    "a module that is not imported": (packed(_class="this.Request"), "already imported; import it at the top"),
    "a class without a module": (packed(_class="Request"), "_class = 'Request': must be"),
    "a class that is no text": (packed(_class=["a"]), "_class = .*: must be"),
    "another class's attribute": (packed(mark=1), "'mark': Request has no such attribute"),
    "Python's own": (packed(callback="__init__"), "callback = '__init__': must be the name of a method"),
    "a path": (packed(errback="crawler.stop"), "errback = 'crawler.stop': must be the name of a method"),
    "a callback that is no text": (packed(callback=1), "callback = 1: must be the name of a method"),
    "an unhashable key": (b"\x82\xa3url\xa0\xa4meta\x81\x90\x01", "unhashable"),
    "an unhashable element": (packed(meta=[mark(1), []]), "unhashable"),
    "a time": (packed(meta=msgpack.Timestamp(1)), "meta: a msgpack.ext.Timestamp cannot be restored"),
    "an unknown mark": (packed(meta=mark(4)), "KeyError"),
    "a reserved mark": (b"\x82\xa3url\xa0\xa4meta\xc7\x00\xfe", "KeyError"),
    "a mark alone": (packed(meta=mark(0)), "meta: a type cannot be restored"),
    "a mark behind": (packed(meta=[1, mark(0)]), r"meta\[1\]: a type cannot be restored"),
    "two marks": (packed(meta=[mark(0), mark(1)]), r"meta\[0\]: a type cannot be restored"),
    "text that is none": (packed(meta="a").replace(b"\xa1a", b"\xa1\xff"), "UnicodeDecodeError"),
    "depth": (b"\x82\xa3url\xa0\xa4meta" + b"\x91" * 100_000, "StackError"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign(what: str) -> None:
    """Foreign data raises one clear error, and imports no module."""
    data, part = FOREIGN[what]
    imported = {*sys.modules}
    with pytest.raises(ValueError, match=rf"(?s)^SCHEDULER_SERIALIZER = 'scrapy_bloom\.serializer': .*{part}"):
        loads(data)
    assert {*sys.modules} == imported


WRITTEN = [dumps(request_with(value)) for value in ({(1, 2): {3, -(2**70)}}, ["text", b"\xff", 1.5, None])]


def assert_read_or_refused(data: bytes) -> None:
    try:
        request = loads(data)
    except ValueError:
        return
    assert exactly(loads(dumps(request))) == exactly(request)


@given(data=st.binary() | st.builds(lambda start, rest: WRITTEN[0][:start] + rest, st.integers(0, 400), st.binary()))
def test_any_bytes(data: bytes) -> None:
    """Any data is a request that `dumps` writes, too, or raises a ValueError."""
    assert_read_or_refused(data)


@given(stored=st.sampled_from(WRITTEN), place=st.integers(0, 400), byte=st.integers(0, 255), cuts=st.booleans())
def test_changed_bytes(stored: bytes, place: int, byte: int, *, cuts: bool) -> None:
    """A request of which a byte was changed or lost is a request, or raises a ValueError."""
    assert_read_or_refused(stored[:place] + (b"" if cuts else bytes([byte])) + stored[place + 1 :])


class Creating:
    """A pickle with a side effect, as any client with write access can store."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (self._path, "w")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_is_not_executed(protocol: int, tmp_path: Any) -> None:
    """The code of a pickle does not run."""
    stored = pickle.dumps({"url": URL, "meta": Creating(str(tmp_path / "made"))}, protocol)
    with pytest.raises(ValueError, match=r"^SCHEDULER_SERIALIZER"):
        loads(stored)
    assert not (tmp_path / "made").exists()
    pickle.loads(stored)["meta"].close()  # noqa: S301  # the control
    assert (tmp_path / "made").exists()


def test_what_loads_would_refuse_is_not_written() -> None:
    """A request that `loads` would refuse is refused when it is written."""

    class Hidden(Request):
        """A class without an importable name."""

    with pytest.raises(ValueError, match=r"Hidden': must be a subclass of scrapy\.Request at the top of a module"):
        dumps(Hidden(URL).to_dict())
    with pytest.raises(ValueError, match=r"^'extra': Chatty has no such attribute; add it to the class's `attributes`"):
        dumps(Chatty(URL).to_dict())
