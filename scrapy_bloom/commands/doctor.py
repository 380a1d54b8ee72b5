"""Look for what would lose pages in a crawl, and say what to do about it.

The exit code is 1 if a crawl would lose something. Nothing is changed.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import Any

from redis import exceptions
from scrapy.settings import Settings
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom.admin.doctor import crawl, leftovers, permissions, server
from scrapy_bloom.admin.doctor.finding import Finding, Level, advice, loss
from scrapy_bloom.admin.importing.state import ImportKeys
from scrapy_bloom.admin.report import FilterReport, report
from scrapy_bloom.commands import _output
from scrapy_bloom.commands._ending import ExitCode
from scrapy_bloom.commands._target import Target
from scrapy_bloom.commands._target import add_options as add_target
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import MismatchError, RefusedError, WrongTypeError
from scrapy_bloom.filter import stored
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.inspection import first_request
from scrapy_bloom.transport.retry import retry_until

EXAMPLES = """\
examples:
  scrapy bloom doctor news
  scrapy bloom doctor news --json
  scrapy bloom doctor --key news:dupefilter --queue news:requests --redis-url redis://localhost:6379
"""

_OURS = "scrapy_bloom.BloomScheduler"
_SIGNS = {Level.OK: "ok  ", Level.ADVICE: "!   ", Level.LOSS: "LOSS"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target(parser)
    parser.add_argument(
        "--idle",
        type=float,
        default=leftovers.IDLE_SECONDS,
        metavar="SECONDS",
        help="look for leftover filters that were not used for so long (default %(default)s)",
    )
    _output.add_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    target = Target.of(options, settings)
    findings = list(_examine(target, options.idle))
    if options.json:
        told = {"server": target.server, "key": target.key, "findings": [asdict(finding) for finding in findings]}
        _output.print_json(told)
    else:
        print(_told(target, findings))
    return ExitCode.NO if any(finding.level is Level.LOSS for finding in findings) else ExitCode.DONE


def _examine(target: Target, idle: float) -> Iterator[Finding]:
    yield crawl.versions()
    if target.has_spider:
        yield from _classes(target)
    found, of_filter = _filter(target)
    new_bytes = 0 if found is not None and found.has_layers else _parameters(target, found).memory_bytes
    expires = bool(_parameters(target, found).ttl)
    for node in retry_until(lambda: server.nodes_of(target.client), target.wait):
        yield from server.examine(node, new_bytes, expires=expires)
    yield from of_filter
    queues = dict.fromkeys([*target.queues, *(found.stored.users if found else [])])
    for name in queues:
        yield from _allowed("queue", partial(_queue, target, name))
    user = _user(target.client)
    queue = next(iter(queues), None)
    yield from _allowed("permissions", lambda: [permissions.examine(target.client, user, target.key, queue)])
    yield from _allowed("leftover filters", lambda: [leftovers.filters(target.client, idle)])
    yield leftovers.files(["", job_dir(target.settings) or ""])


def _classes(target: Target) -> Iterator[Finding]:
    settings = target.settings
    dupefilter, scheduler = settings["DUPEFILTER_CLASS"], settings["SCHEDULER"]
    yield crawl.dupefilter(_name(dupefilter), is_ours=issubclass(load_object(dupefilter), BloomRFPDupeFilter))
    kind = load_object(scheduler)
    is_ours, is_shared = issubclass(kind, load_object(_OURS)), issubclass(kind, Scheduler)
    yield crawl.scheduler(_name(scheduler), is_ours=is_ours, is_shared=is_shared)
    if is_shared:
        serializer = _serializer(target)
        yield crawl.serializer(serializer, target.server, is_there=_is_there(settings["SCHEDULER_SERIALIZER"]))
        yield from crawl.shared_queue(settings["SCHEDULER_QUEUE_KEY"], target.sharers)


def _serializer(target: Target) -> str | None:
    serializer = target.settings["SCHEDULER_SERIALIZER"]
    return _name(serializer) if serializer else None


def _is_there(serializer: Any) -> bool:
    if serializer and isinstance(serializer, str):
        try:
            import_module(serializer)
        except ImportError:
            return False
    return True


def _name(setting: Any) -> str:
    return setting if isinstance(setting, str) else getattr(setting, "__qualname__", str(setting))


def _filter(target: Target) -> tuple[FilterReport | None, list[Finding]]:
    """Return the report on the filter, and what is the matter with it."""
    try:
        found = target.carry_out(report(target.key))
        half = target.carry_out(stored.read(ImportKeys.of(target.key).filling))
    except (MismatchError, RefusedError, WrongTypeError) as error:
        return None, [loss("filter", f"no worker would start: {error}", "")]
    wanted = target.parameters if target.has_spider else None
    begun = [] if half is None else [crawl.half_import(half.key)]
    return found, [*crawl.stored_filter(found, wanted), *begun]


def _parameters(target: Target, found: FilterReport | None) -> FilterParameters:
    return found.stored.parameters if found is not None else target.parameters


def _queue(target: Target, name: str) -> list[Finding]:
    state = target.inspect_queue(name)
    findings = crawl.queue(state)
    if target.has_spider:
        findings += crawl.first_request(first_request(target.client, name), _serializer(target))
    registered = [worker.name for worker in state.workers]
    return [*findings, *_allowed("leases", lambda: [leftovers.leases(target.client, name, registered)])]


def _user(client: Any) -> str:
    pool = getattr(client, "connection_pool", None)
    return str(getattr(pool, "connection_kwargs", {}).get("username") or "default")


def _allowed(check: str, examine: Callable[[], list[Finding]]) -> list[Finding]:
    """Return the findings, or that this user may not look."""
    try:
        return examine()
    except (exceptions.ResponseError, RefusedError) as error:
        return [advice(check, f"not looked for: {error}", "ask with a user who may")]


def _told(target: Target, findings: list[Finding]) -> str:
    lines = [f"{target.key} on {target.server}", ""]
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        lines.append(f"{_SIGNS[finding.level]}  {finding.check:<{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':{width + 6}}  -> {finding.advice}")
    count = Counter(finding.level for finding in findings)
    return "\n".join([*lines, "", _verdict(count[Level.LOSS], count[Level.ADVICE])])


def _verdict(losses: int, worth_doing: int) -> str:
    if losses:
        return "A crawl would lose pages, fetch them twice or not start, as LOSS says above."
    return f"Nothing here loses pages.{' Look at what has a ! all the same.' if worth_doing else ''}"
