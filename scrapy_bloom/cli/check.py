"""Say of requests if they would be dropped as repeats, and why. Nothing is added.

The exit code is 0 if all would be dropped, 1 if not. With two URLs it says if they are the same to the filter, and
where their canonical forms differ.
"""

import argparse
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from scrapy import Request
from scrapy.exceptions import UsageError
from scrapy.settings import Settings
from w3lib.url import canonicalize_url

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget
from scrapy_bloom.cli._target import add_options as add_target
from scrapy_bloom.errors import MismatchError
from scrapy_bloom.filter.stored_filter import Place, StoredFilter, look_up

EXAMPLES = """\
examples:
  scrapy bloom check news https://example.com/a
  scrapy bloom check news 'https://example.com/?a=1&b=2' 'https://example.com/?b=2&a=1'
  scrapy bloom check news https://example.com/search --method POST --body q=bloom
  scrapy bloom check --key news:dupefilter https://example.com/a
"""

_PAIR = 2
# The scheme of a filter that was made without Scrapy: its items are what was added.
_ITEMS_AS_THEY_ARE = "bytes"
_SCRAPYS = "scrapy.utils.request.RequestFingerprinter"


@dataclass(frozen=True)
class _Checked:
    """A URL, what the filter knows it as, and the places where it looks."""

    url: str
    canonical_url: str
    fingerprint: str
    places: list[Place]

    @property
    def is_seen(self) -> bool:
        return any(place.is_seen for place in self.places)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.usage = "%(prog)s [options] [SPIDER] URL [URL ...]"
    parser.add_argument("urls", nargs="+", metavar="URL", help="what to look for; before it, a spider of the project")
    add_target(parser, spider=False)
    parser.add_argument("--method", default="GET", help="the method of the requests (default GET)")
    parser.add_argument("--body", default="", help="the body of the requests")
    _console.add_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    options.spider, urls = _split(options.urls)
    target = CrawlTarget.of(options, settings)
    stored = target.require()
    fingerprint_of = _fingerprints(target, stored)
    checked = []
    for url in urls:
        request = _request(url, options)
        item = fingerprint_of(request) if fingerprint_of else url.encode()
        places = target.run_steps(look_up(stored, item))
        checked.append(_Checked(url, canonicalize_url(request.url), item.decode(errors="replace"), places))
    if options.json:
        _console.print_json(_as_dict(stored, checked))
    else:
        print("\n\n".join([*map(_told, checked), *_comparison(checked)]))
    return ExitCode.DONE if all(each.is_seen for each in checked) else ExitCode.NO


def _split(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Return the spider, which stands before the URLs or is left out, and the URLs."""
    first, *rest = arguments
    spider, urls = (None, arguments) if "://" in first else (first, rest)
    if not urls:
        raise UsageError("give a URL", print_help=False)
    return spider, urls


def _request(url: str, options: argparse.Namespace) -> Request:
    try:
        return Request(url, method=options.method, body=options.body)
    except ValueError as error:
        raise UsageError(f"{url!r}: {error}", print_help=False) from None


def _fingerprints(target: CrawlTarget, stored: StoredFilter) -> Any:
    """Return what makes the fingerprints that the filter holds, or None where it holds URLs as they are."""
    scheme = stored.parameters.fingerprint
    if scheme == _ITEMS_AS_THEY_ARE:
        return None
    # Only what is known: whoever can write to Redis would choose what is imported here.
    if not target.has_spider and scheme == _SCRAPYS:
        target.settings.set("REQUEST_FINGERPRINTER_CLASS", scheme, priority="cmdline")
    ours = target.dupefilter.fingerprint_scheme()
    if ours != scheme:
        raise MismatchError(
            f"the filter at {stored.key!r} holds fingerprints of {scheme!r}, and these settings make those of "
            f"{ours!r}: workers with them would be refused; set REQUEST_FINGERPRINTER_CLASS or DUPEFILTER_CLASS, by -s "
            "outside a project"
        )
    return target.dupefilter.fingerprint_of


def _as_dict(stored: StoredFilter, checked: list[_Checked]) -> dict[str, Any]:
    return {
        "key": stored.key,
        "all_seen": all(each.is_seen for each in checked),
        "same": len({each.fingerprint for each in checked}) == 1 if len(checked) > 1 else None,
        "requests": [{**asdict(each), "is_seen": each.is_seen} for each in checked],
    }


def _told(checked: _Checked) -> str:
    answer = "seen: it would be dropped, unless it has dont_filter" if checked.is_seen else "new: it would be fetched"
    rows = [
        ("request", checked.url),
        ("canonical", checked.canonical_url),
        ("fingerprint", checked.fingerprint),
        ("answer", answer),
        *((f"layer {place.layer}", f"{_state(place)}, in {place.key}") for place in checked.places),
    ]
    return _console.pairs(rows)


def _state(place: Place) -> str:
    if place.is_lost:
        return "LOST: the string is gone or another's"
    return "all of its bits are set" if place.is_seen else "not there"


def _comparison(checked: list[_Checked]) -> list[str]:
    if len(checked) != _PAIR:
        return []
    first, second = checked
    if first.fingerprint == second.fingerprint:
        return ["The two are the same to the filter."]
    differences = _differences(first.canonical_url, second.canonical_url)
    where = "\n".join(f"  {name}: {one} and {other}" for name, one, other in differences)
    return [
        f"The two are different to the filter. Their canonical forms differ in\n{where}" if where else _NO_DIFFERENCE
    ]


_NO_DIFFERENCE = "The two are different to the filter, though their canonical forms are the same."


def _differences(first: str, second: str) -> list[tuple[str, str, str]]:
    one, other = urlsplit(first), urlsplit(second)
    parts = [("scheme", one.scheme, other.scheme), ("host", one.netloc, other.netloc), ("path", one.path, other.path)]
    differing = [(name, mine or "none", yours or "none") for name, mine, yours in parts if mine != yours]
    mine, yours = parse_qsl(one.query, keep_blank_values=True), parse_qsl(other.query, keep_blank_values=True)
    for name in dict.fromkeys(name for name, _ in [*mine, *yours]):
        values = [[value for key, value in query if key == name] for query in (mine, yours)]
        if values[0] != values[1]:
            differing.append((f"argument {name}", *(", ".join(each) if each else "none" for each in values)))  # type: ignore[arg-type]
    return differing
