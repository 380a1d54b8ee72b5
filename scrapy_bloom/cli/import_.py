"""Move the SET of scrapy-redis's dupefilter into a filter at the same key.

Stop all workers first. The SET moves to KEY:set, and its members are added to the filter at KEY. If the import is
interrupted, run it again before you start a worker; it takes nothing from the SET.

With --from-file the lines of a file are added to the filter, which workers may use meanwhile.

for example:
  scrapy bloom import news
  scrapy bloom import news --delete-source
  scrapy bloom import --key news:dupefilter --redis-url redis://localhost:6379 --capacity 1e8
  scrapy bloom import news --from-file jobs/news/requests.seen
"""

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom.cli import console
from scrapy_bloom.cli.requests import FINGERPRINT, SCRAPYS_SCHEME, SEEN_FILE, read_lines
from scrapy_bloom.cli.target import CrawlTarget, add_parameter_options, add_target_options, by_partition
from scrapy_bloom.errors import ConfigError, RefusedError, WrongTypeError
from scrapy_bloom.filter.bloom_filter import BloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.settings import OF_FILTER
from scrapy_bloom.text import as_text, plural
from scrapy_bloom.transport.connect import run_id, tagged

_BATCH = 500
_SCHEME_OF_SETS = "scrapy-redis"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    file = "a file of fingerprints or URLs, one per line, or Scrapy's requests.seen"
    parser.add_argument("--from-file", metavar="FILE", type=Path, help=file)
    parser.add_argument("--delete-source", action="store_true", help="delete the SET when the filter has every member")
    add_parameter_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target, path = CrawlTarget(options, settings, waits=True), options.from_file
    if target.has_spider and any(getattr(options, each.setting) is not None for each in OF_FILTER):
        raise ConfigError("set the parameters as BLOOMFILTER_* in the spider's settings instead")
    if path and options.delete_source:
        raise ConfigError("--from-file: --delete-source is for a SET")
    target.require_dupefilter()
    parameters, source = target.parameters(), str(path or f"{tagged(target.key)}:set")
    with console.advise_on_ctrl_c("run the same command again; nothing is lost"):
        if path:
            members, added = _add(target, parameters, _lines(target, path, parameters))
        else:
            members, added = _import(target, source, parameters)
            if options.delete_source:
                target.send("UNLINK", source)
    report = {"key": target.key, "source": source, "members": members, "added": added}
    report |= {"already_known": members - added, "deleted_source": options.delete_source}
    text = f"Added {plural(members, 'line' if path else 'member')} of {source} to the filter at {target.key!r}"
    text += f": {added:,} new, {members - added:,} known before."
    if not path:
        text += "\nThe SET was deleted." if options.delete_source else "\nThe SET stays until you delete it."
    return console.report(options, report, text)


def _lines(target: CrawlTarget, path: Path, parameters: FilterParameters) -> Iterator[list[bytes]]:
    """Yield the fingerprints of a file in batches."""
    if path.name == SEEN_FILE:
        action = f"set REQUEST_FINGERPRINTER_CLASS = {SCRAPYS_SCHEME!r}"
        _require_scheme(parameters, SCRAPYS_SCHEME, f"--from-file {path}", action)
    item_of = target.dupefilter.fingerprint_of
    with path.open("rb") as file, console.progress(path.name, None, " lines") as advance:
        lines = read_lines(str(path), file)
        while batch := list(islice(lines, _BATCH * len(target.partitions))):
            yield [item_of(Request(text.decode())) if is_url else text for text, is_url in batch]
            advance(len(batch))


def _require_scheme(parameters: FilterParameters, scheme: str, source: str, action: str) -> None:
    """Refuse fingerprints that the crawl would not find."""
    if parameters.fingerprint != scheme:
        fault = f"{source} has fingerprints of {scheme!r}, but this project makes those of {parameters.fingerprint!r}"
        raise ConfigError(f"{fault} and would find none of them: {action}")


def _import(target: CrawlTarget, source: str, parameters: FilterParameters) -> tuple[int, int]:
    """Move the SET to its place, and add its members; return their number, and the number of the new ones."""
    client, key = target.client, target.key
    action = "remove REQUEST_FINGERPRINTER_CLASS, or the request_fingerprint of a subclass, or start over. If your old "
    action += "dupefilter made the same fingerprints, write the members of the SET to a file, and use --from-file"
    _require_scheme(parameters, _SCHEME_OF_SETS, "a SET", action)
    if as_text(target.send("TYPE", key)) == "set":
        _examine(target, target.dupefilter.parameters().capacity)
        # A call whose reply was lost is repeated.
        if not target.retry(lambda: not client.exists(key) or client.renamenx(key, source)):
            fault = (
                f"the key {source!r}, to which an import moves the SET at {key!r}, is not empty: rename or delete it"
            )
            action = "if old workers ran beside an interrupted import, join both SETs there by SUNIONSTORE"
            raise WrongTypeError(f"{fault}, or {action}")
    elif as_text(target.send("TYPE", source)) != "set":
        target.read_filter()  # it refuses other data
        fault = f"there is no SET at {key!r}, nor at {source!r}, where an import keeps it. Check the key and the server"
        why = "its crawl deletes it at its end (SCHEDULER_PERSIST = False), and so does --delete-source"
        raise WrongTypeError(f"{fault}: {why}")
    run, members = target.retry(lambda: run_id(client, source)), int(target.send("SCARD", source))
    read, added = _add(target, parameters, _scan(target, source, members))
    # Another server, or a restarted one, continues a scan at another place; a deleted SET has no members.
    if not 0 < members <= read or run != target.retry(lambda: run_id(client, source)):
        fault = f"the server was restarted or replaced, or returned {read:,} of {members:,} members of the SET"
        raise RefusedError(f"{fault} at {source!r}: run this again")
    return members, added


def _examine(target: CrawlTarget, capacity: int) -> None:
    """Refuse a SET of other members than fingerprints, and warn of one above the capacity."""
    for member in target.send("SRANDMEMBER", target.key, 100):
        if not FINGERPRINT.fullmatch(member):
            fault = f"the SET at {target.key!r} has the member {member.decode(errors='replace')!r}, which is not a"
            advice = "is it the key of the dupefilter?"
            raise WrongTypeError(f"{fault} fingerprint of scrapy-redis (40 hexadecimal digits): {advice}")
    if (members := int(target.send("SCARD", target.key))) > capacity:
        console.note(
            f"BLOOMFILTER_CAPACITY = {capacity:_}, but the SET at {target.key!r} has {members:,} members: the filter "
            "grows, or with BLOOMFILTER_EXPANSION = 0 exceeds its error rate. To avoid that, stop this, delete the "
            f"filter by `scrapy bloom clear`, set a capacity above {members:_}, and run it again"
        )


def _scan(target: CrawlTarget, source: str, members: int) -> Iterator[list[bytes]]:
    """Yield the members of a SET in batches, perhaps some twice."""
    with console.progress("importing", members, " members") as advance:
        cursor = None
        while cursor != 0:
            cursor, batch = target.send("SSCAN", source, cursor or 0, "COUNT", _BATCH * len(target.partitions))
            yield batch
            advance(len(batch))


def _add(target: CrawlTarget, parameters: FilterParameters, batches: Iterator[list[bytes]]) -> tuple[int, int]:
    """Add fingerprints, each to its partition; return their number, and the number of the new ones."""
    read = added = 0
    parts, blooms = target.partitions, list[BloomFilter]()
    target.read_filter()  # it refuses another number of partitions
    options = {"cache_size": 0, "retry_timeout": target.wait}
    for batch in batches:
        # A file with a wrong first line creates no filter.
        blooms = blooms or [BloomFilter.with_parameters(part.client, part.key, parameters, **options) for part in parts]
        for bloom, items in zip(blooms, by_partition(batch, len(parts)), strict=True):
            added += sum(bloom.add_many(items))
        read += len(batch)
    for bloom in blooms:
        bloom.info()  # a call notices another filter
        if bloom.counters.losses:
            raise RefusedError(f"the filter at {bloom.key!r} has lost members: run this again")
        bloom.close()
    return read, added
