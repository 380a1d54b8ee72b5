"""Requests as JSON: an exact round trip, or a refusal."""

import collections
import enum
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import HtmlResponse, JsonRequest, XmlRpcRequest
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.request import request_from_dict

from scrapy_bloom.serializers.json import dumps, loads

URL = "https://shop.test/"


class Code(enum.IntEnum):
    FINE = 200


class Colour(enum.StrEnum):
    RED = "red"


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


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


class MakesDirectory:
    """A pickle with a side effect, as any client with write access can store."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.mkdir, (self._path,)


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


def text_with(**parts: object) -> str:
    """JSON of a request with further parts, as any client can write it."""
    return json.dumps({"url": URL, **parts})


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**62),
    st.integers(max_value=-(2**62)),
    st.floats(),
    # With surrogates, which hypothesis leaves out otherwise.
    st.text(st.characters()),
    st.text(st.characters(categories=["Cs"])),
    st.binary(),
    st.sampled_from(["$bytes", "$dict", "$", "", "\ud800\udc00", "a\udc00\ud800\udc00"]),
)
HASHABLE = st.recursive(PLAIN, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.sets(HASHABLE, max_size=3),
        st.frozensets(HASHABLE, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.dictionaries(st.sampled_from(["$bytes", "$dict", "$tuple", "$int"]), inner, max_size=2),
        st.dictionaries(st.binary(), st.lists(st.binary(), max_size=2), max_size=2),
    ),
    max_leaves=12,
)


@given(meta=st.dictionaries(HASHABLE, VALUES, max_size=3), cb_kwargs=st.dictionaries(st.text(), VALUES, max_size=3))
def test_values_come_back(meta: dict[Any, Any], cb_kwargs: dict[str, Any]) -> None:
    """All supported values of meta and cb_kwargs are restored exactly."""
    request = Request(URL, meta=meta, cb_kwargs=cb_kwargs).to_dict()
    stored = dumps(request)
    assert stored.isascii()
    assert exactly(loads(stored)) == exactly(loads(stored.decode())) == exactly(request)
    assert dumps(loads(stored)) == stored


PARTS = st.fixed_dictionaries(
    {
        "headers": st.dictionaries(st.binary(min_size=1), st.lists(st.binary(), max_size=3)),
        "body": st.binary(),
        "cookies": st.dictionaries(st.text(), st.text())
        | st.lists(st.dictionaries(st.text(), st.text() | st.booleans())),
        "priority": st.integers(),
        "flags": st.lists(st.text()),
    }
)


@given(parts=PARTS)
def test_parts_come_back(parts: dict[str, Any]) -> None:
    """The parts of a request are restored unchanged, and make the same request."""
    request = Request(URL, method="PUT", encoding="latin-1", dont_filter=True, **parts).to_dict()
    assert exactly(loads(dumps(request))) == exactly(request)
    assert exactly(request_from_dict(loads(dumps(request))).to_dict()) == exactly(request)


SIMILAR: dict[str, object] = {
    "numbers of any size": [2**63 - 1, 2**63, -(2**63), 2**20_000, -(2**20_000)],
    "halves in a key": {"\ud800\udc00": 1},
    "halves that are no pair": {"\udc00\ud800": "\udc00"},
    "headers with tuples": {b"a": (b"b",)},
    "headers with bytes": {b"a": b"bc"},
    "headers with text": {b"a": ["b"]},
    "headers with bytes that are no ASCII": {b"a": [b"\xff"]},
    "names with text": {"a": [b"b"]},
    "headers and another": {b"a": [b"b"], "c": []},
    "true and one": [True, 1, 1.0, {True: 0}, {1: 0}],
    "one name of a tag": {"$bytes": "a"},
    "names of tags": {"$bytes": "a", "$tuple": []},
    "a name of none": {"$": {"$$": None}},
}


@pytest.mark.parametrize("what", SIMILAR)
def test_values_that_look_alike(what: str) -> None:
    """A value that resembles another one, in JSON or in Python, comes back as itself."""
    assert exactly(loads(dumps(request_with(SIMILAR[what])))["meta"]["it"]) == exactly(SIMILAR[what])


KINDS: dict[str, Callable[[], Request]] = {
    "Request": lambda: Request(URL),
    "FormRequest": lambda: FormRequest(URL, formdata={"a": "b"}),
    "JsonRequest": lambda: JsonRequest(URL, data={"a": 1}, dumps_kwargs={"indent": 2, "separators": (",", ":")}),
    "XmlRpcRequest": lambda: XmlRpcRequest(URL, params=("a",), methodname="do"),
    "a user's": lambda: Marked(URL, mark=(b"\xff", {1: 2})),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_requests(kind: str) -> None:
    """A request comes back with its class, its callbacks and its class's attributes."""
    spider = ShopSpider()
    request = KINDS[kind]().replace(callback=spider.parse_item, errback=spider.failed)
    there = request_from_dict(loads(dumps(request.to_dict(spider=spider))), spider=spider)
    assert type(there) is type(request)
    assert exactly(there.to_dict(spider=spider)) == exactly(request.to_dict(spider=spider))
    assert (there.callback, there.errback) == (spider.parse_item, spider.failed)


def test_same_bytes_in_each_process() -> None:
    """The same request is the same member of the queue under every hash seed."""
    program = (
        "from scrapy import Request; from scrapy_bloom.serializers.json import dumps; import sys;"
        f"sys.stdout.buffer.write(dumps(Request({URL!r}, meta={{'it': set('abcdef') | {{1, (2,)}}}}).to_dict()))"
    )
    # The seed of this process is drawn.
    environment = {"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)}
    stored = subprocess.check_output([sys.executable, "-c", program], env=environment)
    assert stored == dumps(request_with({*"abcdef", 1, (2,)}))


def test_link_text() -> None:
    """The text of a link, which CrawlSpider puts into meta, is lxml's and comes back as plain text."""
    (link,) = LinkExtractor().extract_links(HtmlResponse(URL, body=b"<a href='/x'>There</a>"))
    assert type(link.text) is not str
    assert exactly(loads(dumps(request_with(link.text)))["meta"]["it"]) == (str, "There")


REFUSED: dict[str, tuple[object, str]] = {
    "an object": (object(), r"meta\['it'\]: an object cannot"),
    "deep": ({"a": [1, (2, {"b": 1j})]}, r"meta\['it'\]\['a'\]\[1\]\[1\]\['b'\]: a complex cannot"),
    "IntEnum": (Code.FINE, r"meta\['it'\]: a tests.unit.test_json_serializer.Code cannot"),
    "StrEnum": ([Colour.RED], r"meta\['it'\]\[0\]: a tests.unit.test_json_serializer.Colour cannot"),
    "str": (Text("a"), r"meta\['it'\]: a tests.unit.test_json_serializer.Text cannot"),
    "namedtuple": (Point(1), r"meta\['it'\]: a tests.unit.test_json_serializer.Point cannot"),
    "OrderedDict": (collections.OrderedDict(a=1), r"meta\['it'\]: a collections.OrderedDict cannot"),
    "defaultdict": (collections.defaultdict(list), r"meta\['it'\]: a collections.defaultdict cannot"),
    "bytearray": (bytearray(b"a"), r"meta\['it'\]: a bytearray cannot"),
    "a key": ({(1, Code.FINE): 2}, r"a key of meta\['it'\]\[1\]: a tests.unit.test_json_serializer.Code cannot"),
    "an element": ({Code.FINE}, r"an element of meta\['it'\]: a tests.unit.test_json_serializer.Code cannot"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_could_not_come_back(what: str) -> None:
    """A value that would change its type is refused, with its type, its place, and the correction."""
    value, part = REFUSED[what]
    with pytest.raises(ValueError, match=f"^{part} be restored from JSON; store its contents as str, bytes"):
        dumps(request_with(value))


def test_what_contains_itself() -> None:
    """A value that contains itself, or nests too deeply, is refused; one of the maximum depth comes back."""
    itself: list[Any] = []
    itself.append({"a": itself})
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (itself, deep):
        with pytest.raises(ValueError, match=r"^meta\['it'\]\S*: nests deeper than 100 levels, or contains itself"):
            dumps(request_with(value))
    with pytest.raises(ValueError, match="was not written by this serializer: RecursionError"):
        loads('{"url":' + "[" * 100_000)
    # A dict takes most of a reader's stack.
    deepest: Any = math.inf
    for _ in range(98):
        deepest = {(): deepest}
    assert exactly(loads(dumps(request_with(deepest)))["meta"]["it"]) == exactly(deepest)
    with pytest.raises(ValueError, match="nests deeper than 100 levels"):
        dumps(request_with({(): deepest}))


FOREIGN: dict[str, tuple[str | bytes, str]] = {
    "nothing": (b"", "JSONDecodeError"),
    "no JSON": (b"not a request", "JSONDecodeError"),
    "no text": ('{"url":"é"}'.encode(), "UnicodeDecodeError"),
    "a list": ("[]", "a request is a dict"),
    "no URL": ("{}", "a request is a dict"),
    "a URL that is none": ('{"url":{"$bytes":"a"}}', "a request is a dict"),
    "an unknown key": (text_with(extra=1), "'extra': Request has no such attribute"),
    "a function": (text_with(_class="os.system"), r"_class = 'os.system': must be a subclass of scrapy.Request"),
    "another class": (text_with(_class="subprocess.Popen"), "_class = 'subprocess.Popen': must be"),
    "a class that offers itself": (text_with(_class="scrapy_bloom.BloomScheduler"), "_class = .*: must be"),
    "a module that is not imported": (text_with(_class="this.Request"), "already imported; import it at the top"),
    "a class without a module": (text_with(_class="Request"), "_class = 'Request': must be"),
    "a class that is no text": (text_with(_class=["a"]), "_class = .*: must be"),
    "another class's attribute": (text_with(mark=1), "'mark': Request has no such attribute"),
    "Python's own": (text_with(callback="__init__"), "callback = '__init__': must be the name of a method"),
    "a path": (text_with(errback="crawler.stop"), "errback = 'crawler.stop': must be the name of a method"),
    "a callback that is no text": (text_with(callback=1), "callback = 1: must be the name of a method"),
    "an unknown tag": (text_with(meta={"$object": "os.system"}), "'\\$object' is no known type"),
    "a tag of another type": (text_with(meta={"$bytes": 1}), "'\\$bytes' contains an int"),
    "bytes that are none": (text_with(meta={"$bytes": "é"}), "UnicodeEncodeError"),
    "base64 that is none": (text_with(meta={"$base64": "%"}), "Error"),
    "a float that is none": (text_with(meta={"$float": "1"}), "KeyError"),
    "an int that is none": (text_with(meta={"$int": "g"}), "invalid literal"),
    "an unhashable key": (text_with(meta={"$dict": [[[], 1]]}), "unhashable"),
    "an unhashable element": (text_with(meta={"$set": [[]]}), "unhashable"),
    "pairs that are none": (text_with(meta={"$dict": [1]}), "TypeError"),
    "headers that are none": (text_with(headers={"$headers": [[1]]}), "AttributeError"),
    "headers without a name": (text_with(headers={"$headers": [[]]}), "ValueError"),
    "a number that is none": ('{"url":NaN}', "NaN is not JSON"),
    "a number that is too long": ('{"url":' + "1" * 10_000 + "}", "Exceeds the limit"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign(what: str) -> None:
    """Foreign text raises one clear error, and imports no module."""
    data, part = FOREIGN[what]
    imported = set(sys.modules)
    with pytest.raises(ValueError, match=f"(?s)^SCHEDULER_SERIALIZER = 'scrapy_bloom.serializers.json': .*{part}"):
        loads(data)
    assert set(sys.modules) == imported


@given(st.binary() | st.text())
def test_anything_is_refused(data: bytes | str) -> None:
    """Every unreadable member raises the same kind of error."""
    with pytest.raises(ValueError, match=r"^SCHEDULER_SERIALIZER"):
        loads(data)


def test_pickle_is_not_executed(tmp_path: Path) -> None:
    """A pickle is refused as such, and its code does not run."""
    stored = pickle.dumps({"url": URL, "meta": MakesDirectory(tmp_path / "made")}, protocol=-1)
    with pytest.raises(ValueError, match="is a pickle of another serializer, which this one never reads"):
        loads(stored)
    assert not (tmp_path / "made").exists()
    pickle.loads(stored)  # noqa: S301  # the control
    assert (tmp_path / "made").exists()


def test_what_loads_would_refuse_is_not_written() -> None:
    """A request that `loads` would refuse is refused when it is written."""

    class Hidden(Request):
        """A class without an importable name."""

    with pytest.raises(ValueError, match=r"Hidden': must be a subclass of scrapy\.Request at the top of a module"):
        dumps(Hidden(URL).to_dict())
    with pytest.raises(ValueError, match=r"^'extra': Chatty has no such attribute; add it to the class's `attributes`"):
        dumps(Chatty(URL).to_dict())
