"""Move the SET of scrapy-redis's dupefilter into a filter at the same key.

Stop all workers first. The SET moves to KEY:set and is copied into the filter, which workers refuse until it has every
member. An interrupted import begins again when you run it again; it takes nothing from the SET.

With --from-file the lines of a file are added to the filter, which workers may use meanwhile.

for example:
  scrapy bloom import news
  scrapy bloom import news --delete-source
  scrapy bloom import --key news:dupefilter --redis-url redis://localhost:6379 --capacity 1e8
  scrapy bloom import news --from-file jobs/news/requests.seen
"""

import argparse
import time
from itertools import islice
from pathlib import Path

from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._filling import Filling, place_of_set
from scrapy_bloom.cli._requests import FINGERPRINT, SCRAPYS_SCHEME, SEEN_FILE, read_lines
from scrapy_bloom.cli._target import PARAMETERS, CrawlTarget, add_parameter_options, add_target_options, by_partition
from scrapy_bloom.errors import ConfigError, MismatchError, RefusedError, WrongTypeError
from scrapy_bloom.filter.bloom_filter import BloomFilter
from scrapy_bloom.filter.hashing import new_secret
from scrapy_bloom.filter.info import StoredFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.text import as_text, plural

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
    target = CrawlTarget(options, settings, waits=True)
    if target.has_spider and any(getattr(options, name) is not None for name in PARAMETERS):
        raise ConfigError("set the parameters as BLOOMFILTER_* in the spider's settings instead")
    if options.from_file and options.delete_source:
        raise ConfigError("--from-file: --delete-source is for a SET")
    target.require_dupefilter()
    started, parameters = time.monotonic(), target.parameters()
    with _console.advise_on_ctrl_c("run the same command again; nothing is lost"):
        if options.from_file:
            source, members, added, is_deleted = *_import_file(options.from_file, target, parameters), False
        else:
            source, members, added, is_deleted = _import_set(target, parameters, deletes_set=options.delete_source)
    seconds = time.monotonic() - started
    known, rate = members - added, members / seconds
    report = {"key": target.key, "source": source, "members": members, "added": added, "already_known": known}
    report |= {"seconds": round(seconds, 3), "members_a_second": round(rate, 1), "deleted_source": is_deleted}
    pace = f"({seconds:,.1f} s, {rate:,.0f} a second)"
    if options.from_file:
        text = (
            f"Added {plural(members, 'line')} of {source} to the filter at {target.key!r}: {added:,} new, "
            f"{known:,} known before {pace}."
        )
    else:
        kept = f"The SET is at {source!r} until you run this again with --delete-source."
        text = (
            f"The filter at {target.key!r} has every member of the SET: {members:,} {pace}. "
            f"{'The SET was deleted.' if is_deleted else kept}\n"
            "Start the workers with scrapy-bloom, by its add-on or its classes, and these settings."
        )
    return _console.report(options, report, text)


def _import_file(path: Path, target: CrawlTarget, parameters: FilterParameters) -> tuple[str, int, int]:
    """Add the lines of a file; return its name, and the numbers of its lines and of the new ones."""
    if path.name == SEEN_FILE and parameters.fingerprint != SCRAPYS_SCHEME:
        raise ConfigError(
            f"--from-file {path}: {SEEN_FILE} has Scrapy's fingerprints, but this project makes those of "
            f"{parameters.fingerprint!r} and would find none of them. Set REQUEST_FINGERPRINTER_CLASS = "
            f"{SCRAPYS_SCHEME!r}"
        )
    target.read_filter()  # it refuses another number of partitions
    members = added = end = 0
    parts, blooms = target.partitions, list[BloomFilter]()
    item_of, options = target.dupefilter.fingerprint_of, {"cache_size": 0, "retry_timeout": target.wait}
    with path.open("rb") as file, _console.progress(path.name, path.stat().st_size) as advance:
        lines = read_lines(str(path), file)
        while batch := list(islice(lines, _BATCH * len(parts))):
            items = [item_of(Request(text.decode())) if is_url else text for text, is_url, _ in batch]
            # A file with a wrong first line creates no filter.
            blooms = blooms or [
                BloomFilter.with_parameters(part.client, part.key, parameters, **options) for part in parts
            ]
            for bloom, each in zip(blooms, by_partition(items, len(parts)), strict=True):
                added += sum(bloom.add_many(each))
            members += len(batch)
            advance(batch[-1].end - end)
            end = batch[-1].end
    return str(path), members, added


def _import_set(target: CrawlTarget, parameters: FilterParameters, *, deletes_set: bool) -> tuple[str, int, int, bool]:
    """Import the SET at the key, or that of an interrupted import.

    Returns:
        Its key, its size, the number of new members, and whether it is deleted.
    """
    key, source = target.key, place_of_set(target.key)
    if parameters.fingerprint != _SCHEME_OF_SETS:
        raise ConfigError(
            f"a SET has fingerprints of scrapy-redis, but this project makes those of {parameters.fingerprint!r} and "
            "would find none of them. Remove REQUEST_FINGERPRINTER_CLASS, or the request_fingerprint of a subclass, to "
            "keep scrapy-redis's; or start over"
        )
    found = _find(target, source)
    if isinstance(found, StoredFilter) and not found.unfinished:
        if not (members := int(target.send("HGET", key, "imported") or 0)):
            raise WrongTypeError(f"the key {key!r} holds a filter already: there is nothing to import")
        _require_same(target, found.parameters, parameters, source)
        if deletes_set:
            target.send("UNLINK", source)
        return source, members, members, not target.send("EXISTS", source)
    _examine(target, key if found == "set" else source, target.dupefilter.parameters().capacity)
    sizes = "".join("{} {} {} {};".format(*size) for size in parameters.sizes())
    fillings = [
        Filling(part, "import", parameters.to_json(), sizes, new_secret(), found=each)
        for part, each in [(target, found), *_find_others(target, is_begun=isinstance(found, StoredFilter))]
    ]
    for filling in fillings:
        filling.allocate()
    members = _copy(target, source, fillings)
    # The first partition is completed last: until then no worker joins, and an interrupted import begins again.
    added = sum(filling.complete() for filling in fillings[1:])
    return source, members, added + fillings[0].complete(members, deletes_set=deletes_set), deletes_set


def _copy(target: CrawlTarget, source: str, fillings: list[Filling]) -> int:
    """Add each member of a SET to the filter of its partition, and return their number."""
    members, read, cursor = int(target.send("SCARD", source)), 0, None
    with _console.progress("importing", members, " members") as advance:
        while cursor != 0:
            # The server returns a small SET at once, and a member of any SET perhaps twice.
            cursor, part = target.send("SSCAN", source, cursor or 0, "COUNT", _BATCH * len(fillings))
            for filling, items in zip(fillings, by_partition(part, len(fillings)), strict=True):
                for start in range(0, len(items), _BATCH):
                    filling.add(items[start : start + _BATCH])
            advance(len(part))
            read += len(part)
    if read < members:
        raise RefusedError(
            f"the server returned {read:,} of {members:,} members of the SET at {source!r}: run this again"
        )
    return members


def _require_same(target: CrawlTarget, stored: FilterParameters, given: FilterParameters, source: str) -> None:
    """Refuse other parameters than those with which the SET was imported."""
    ours, theirs = given.arguments(), stored.arguments()
    differing = [f"{name} = {ours[name]!r}, not {theirs[name]!r}" for name in ours if ours[name] != theirs[name]]
    if differing:
        remedy = "the SET is deleted, so they cannot be changed"
        if target.send("EXISTS", source):
            remedy = f"to change them, run `scrapy bloom clear --yes --key {target.key}`, and this again"
        raise MismatchError(
            f"{', '.join(differing)}: the filter at {target.key!r} has every member of the SET already, with other "
            f"parameters. Use those; {remedy}"
        )


def _find(target: CrawlTarget, source: str) -> StoredFilter | str:
    """Return the data that an import finds at the key: a filter, `set`, or `none`.

    Raises:
        WrongTypeError: there is nothing to import.
    """
    key = target.key
    kind, kind_at_source = (as_text(target.send("TYPE", name)) for name in (key, source))
    found = None if kind == "set" else target.read_filter()
    if found is not None and found.unfinished == "restore":
        raise WrongTypeError(f"`scrapy bloom restore` is filling the filter at {key!r}: finish that first")
    if kind == "set" and kind_at_source != "none":
        raise WrongTypeError(
            f"the key {source!r}, to which an import moves the SET, holds a {kind_at_source}: rename or delete that"
        )
    if kind_at_source != "set" and (found is None or found.unfinished) and kind != "set":
        raise WrongTypeError(
            f"there is no SET at {key!r}, nor at {source!r}, where an import keeps it: no crawl has used this key, or "
            "its crawl has deleted it at its end (SCHEDULER_PERSIST = False). Check the key and the server"
        )
    return found or kind


def _find_others(target: CrawlTarget, *, is_begun: bool) -> list[tuple[CrawlTarget, StoredFilter | str]]:
    """Return the partitions behind the first one, each with the filter that an import finds there, or `none`.

    Raises:
        WrongTypeError: there are filters already, and no import has begun.
    """
    found = [(part, part.read_filter() or "none") for part in target.partitions[1:]]
    if others := [part.key for part, each in found if each != "none" and not is_begun]:
        raise WrongTypeError(
            f"the keys {', '.join(others)} hold filters of other partitions already: run `scrapy bloom clear` first, "
            "and this again"
        )
    return found


def _examine(target: CrawlTarget, place: str, capacity: int) -> None:
    """Refuse a SET that workers use, or that has other members than fingerprints; warn of a SET above the capacity."""
    workers = target.inspect_queue(target.queue).workers if target.queue else ()
    if leases := [worker.lease for worker in workers if not worker.is_silent]:
        raise RefusedError(
            f"{plural(len(leases), 'worker')} of the queue {target.queue!r} may be running, and would fail until the "
            "import is complete: stop all workers, and run this again (a killed one counts for "
            f"{max(leases):g} s)"
        )
    for member in target.send("SRANDMEMBER", place, 100):
        if not FINGERPRINT.fullmatch(member):
            raise WrongTypeError(
                f"the SET at {place!r} has the member {member.decode(errors='replace')!r}, which is not a fingerprint "
                "of scrapy-redis (40 hexadecimal digits): is it the key of the dupefilter?"
            )
    if (members := target.send("SCARD", place)) > capacity:
        harm = "the filter grows, and takes more memory than one layer with enough capacity"
        if not target.parameters().expansion:
            harm = "a filter that cannot grow (BLOOMFILTER_EXPANSION = 0) exceeds its error rate"
        _console.note(
            f"BLOOMFILTER_CAPACITY = {capacity:_}, but the SET at {place!r} has {members:,} members: "
            f"{harm}. To avoid that, stop this, set a capacity above {members:_}, and run it again"
        )
