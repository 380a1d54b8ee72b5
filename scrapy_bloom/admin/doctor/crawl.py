"""The classes of a crawl, and what they mean for its pages."""

from collections.abc import Sequence
from importlib.metadata import version

from scrapy_bloom.admin.doctor.finding import Finding, advice, loss, ok, refused

_PACKAGES = ("scrapy-bloom", "Scrapy", "scrapy-redis", "redis")
_LOCAL = ("localhost", "127.", "::1", "unix:")
JSON = "scrapy_bloom.serializers.json"
_PICKLE = b"\x80"
_OUR_FILTER = "set ADDONS = {'scrapy_bloom.Addon': 500}, or DUPEFILTER_CLASS = 'scrapy_bloom.BloomRFPDupeFilter'"
_OUR_SCHEDULER = "set SCHEDULER = 'scrapy_bloom.BloomScheduler'"


def versions() -> Finding:
    """Return the versions of the packages that work together."""
    return ok("versions", ", ".join(f"{package} {version(package)}" for package in _PACKAGES))


def dupefilter(name: str, *, is_ours: bool | None) -> Finding:
    """Check the DUPEFILTER_CLASS; None: it cannot be imported."""
    check = "dupefilter"
    if is_ours:
        return ok(check, f"DUPEFILTER_CLASS = {name!r}")
    if is_ours is None:
        return refused(check, f"DUPEFILTER_CLASS = {name!r} cannot be imported", _OUR_FILTER)
    return loss(
        check, f"DUPEFILTER_CLASS = {name!r}: it is not scrapy-bloom's, and this filter is not used", _OUR_FILTER
    )


def scheduler(name: str, *, is_ours: bool | None, is_shared: bool) -> Finding:
    """Check the SCHEDULER: one that is not shared has a queue in each process; None: it cannot be imported."""
    check = "scheduler"
    if is_ours:
        return ok(check, f"SCHEDULER = {name!r}")
    if is_ours is None:
        return refused(check, f"SCHEDULER = {name!r} cannot be imported", _OUR_SCHEDULER)
    if is_shared:
        return loss(
            check,
            f"SCHEDULER = {name!r}: it loses requests when Redis or a worker goes away, with a reply, and at Ctrl-C",
            _OUR_SCHEDULER,
        )
    return advice(check, f"SCHEDULER = {name!r}: nothing is shared, each process crawls for itself", _OUR_SCHEDULER)


def spider(name: str, *, pops: bool) -> Finding:
    """Check the class of the spider, which may pop its start URLs."""
    check = "spider"
    if not pops:
        return ok(check, name)
    return loss(
        check,
        f"{name} pops its start URLs, as scrapy-redis's RedisSpider does: a worker that dies loses those it has taken",
        "import RedisSpider or RedisCrawlSpider from scrapy_bloom",
    )


def serializer(name: str | None, server: str | None, *, is_there: bool = True) -> Finding:
    """Check the SCHEDULER_SERIALIZER for a server at this address, if that is known."""
    check = "serializer"
    if not is_there:
        return refused(check, f"{name!r} cannot be imported", "set SCHEDULER_SERIALIZER to a module")
    if name == JSON:
        return ok(check, "requests are JSON: who can write to Redis cannot execute code in the workers")
    what = "pickle" if name is None else repr(name)
    if server is None or server.startswith(_LOCAL):
        where = "" if server is None else ", on this machine"
        return ok(check, f"{what}{where}; {JSON!r} is safer where others can write to Redis")
    return advice(
        check,
        f"{what}: whoever can write to this Redis can execute code in the workers",
        f"set SCHEDULER_SERIALIZER = {JSON!r} when the queue is empty",
    )


def first_request(first: bytes | None, name: str | None) -> list[Finding]:
    """Check whether a crawl with this SCHEDULER_SERIALIZER reads the first of the requests that wait."""
    is_pickle = first is not None and first.startswith(_PICKLE)
    if first is None or (name is not None and name != JSON) or is_pickle == (name is None):
        return []
    kind, other = ("pickles", "JSON") if is_pickle else ("JSON", "pickles")
    return [
        loss(
            "serializer",
            f"{kind} wait in the queue, and this crawl reads {other}: all that wait would become dead letters",
            "let workers with the old SCHEDULER_SERIALIZER finish, or begin anew",
        )
    ]


def shared_queue(template: str, others: Sequence[str]) -> list[Finding]:
    """Warn about other spiders of the project that have the same queue, by their SCHEDULER_QUEUE_KEY."""
    if not others:
        return []
    shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")  # noqa: PLR2004  # as examples
    return [
        advice(
            "queue",
            f"SCHEDULER_QUEUE_KEY = {template!r} is that of other spiders, too ({shown}): beside or after them a crawl "
            "takes their requests, for which it may have no callback or another one",
            "set a key with %(spider)s in it, unless only one of these spiders is ever started",
        )
    ]
