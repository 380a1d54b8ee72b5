"""Blocks of the pages on start requests, incremental crawls and servers do what the pages say."""

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider

from scrapy_bloom import RedisSpider
from scrapy_bloom.pace import RESERVED, WASTED
from tests.project.test_page_settings import settings_of
from tests.support import command
from tests.support.documentation import EVERY_PAGE, blocks, text_of
from tests.support.outcomes import assert_complete, assert_ended_well
from tests.support.pages import FANOUT, star, tree
from tests.support.scenario import OURS, scene
from tests.support.servers import running
from tests.support.spiders import storing, unfiltered
from tests.support.spiders.links import LinksSpider

SHELLS = ("bash", "console")
# A server of a test has no file of settings, and `--scan` is the client's.
REDIS_CLI = "redis-cli (?!config rewrite|--scan)"
# Commands that are run: here, in `test_page_commands`, and those of some pages in `test_snippets`.
RUN = (REDIS_CLI, "scrapy bloom ")
CRAWLS = r"(start|tutorial|\.\./README)\.md: scrapy (startproject|crawl) "
# The beginnings of the others, each with its reason.
NOT_RUN = {
    r"pip (install|wheel .*) (path/to|\.)/|python3 -m venv |\. |cd ": "the environment; `make wheel` tests the package",
    "make |TEST_SERVER=|python -m benchmarks": "tasks of this repository, which CI runs",
    "docker |kubectl |curl ": "needs a platform, or its service",
    "redis-server|redis-cli (config rewrite|--scan)": "the tests start servers of their own",
    r"cat \w+\.jsonl|kill |python -m devtools\.site": "`test_snippets` does it by itself",
    "scrapy crawl news -s SCHEDULER_FLUSH_ON_START=True": "`test_snippets` starts over by it with another spider",
}


def shell(*pages: str, begins: str) -> list[list[str]]:
    """Return the words of the pages' lines of the shell that begin so, without pipes."""
    lines = [line for page in pages for block in blocks(page, "bash") for line in block.splitlines()]
    return [shlex.split(line.partition(" | ")[0]) for line in lines if re.match(begins, line)]


def python(page: str, part: str) -> str:
    """Return the page's only block of Python that contains a text."""
    (block,) = (block for block in blocks(page, "python") if part in block)
    return block


def test_start_requests() -> None:
    """The method sends the start URLs through the filter."""
    names: dict[str, Any] = {"Request": Request}
    exec(python("start-requests.md", "async def start"), names)  # noqa: S102  # our own documentation
    spider = type("PageSpider", (Spider,), {"start": names["start"], "start_urls": ["https://example.com/"]})("page")

    async def read() -> list[Request]:
        return [request async for request in spider.start()]

    # Without a loop: `asyncio.run` would drop the one of this process, unclosed.
    with pytest.raises(StopIteration) as end:
        read().send(None)
    (request,) = end.value.value
    assert (request.url, request.dont_filter) == ("https://example.com/", False)


def test_start_urls() -> None:
    """The entries become requests of a spider of the page's class.

    The page's other class sends the same requests through the filter.
    """
    names: dict[str, Any] = {}
    exec(python("start-requests.md", "import"), names)  # noqa: S102  # as above
    assert names["RedisSpider"] is RedisSpider
    with running("valkey") as server, server.client() as client:
        for _, *words in shell("start-requests.md", begins="redis-cli "):
            client.execute_command(*words)
        entries = client.lrange("news:start_urls", 0, -1)
    exec(python("start-requests.md", "class NewsSpider"), names)  # noqa: S102  # as above
    urls = [f"https://example.com/{end}" for end in ("", "?page=2")]
    for spider, dont_filter in ((RedisSpider("news"), True), (names["NewsSpider"](), False)):
        spider.redis_encoding = "utf-8"
        requests = [spider.make_request_from_data(entry) for entry in entries]
        assert [(request.url, request.dont_filter) for request in requests] == [(url, dont_filter) for url in urls]
        assert requests[1].meta == json.loads(entries[1])["meta"]


def test_incremental(tmp_path: Path) -> None:
    """Each run fetches the lists, and an article once. A later run fetches a new article, and a failed one."""
    settings = python("recrawl.md", "BLOOMFILTER_ALWAYS")
    links = {
        "/": ["/news/"],
        "/news/": ["/news/page/2", "/news/1"],
        "/news/page/2": ["/news/", "/news/2", "/news/3"],
        **{f"/news/{article}": ["/news/"] for article in (1, 2, 3, 4)},
    }
    lists = {"/", "/news/", "/news/page/2"}
    chosen = {**OURS, "RETRY_TIMES": 0, **settings_of(settings, {})}
    chosen["BLOOMFILTER_ALWAYS"] = "|".join(chosen["BLOOMFILTER_ALWAYS"])  # a command line takes one pattern
    with running("valkey") as server, scene(links, tmp_path, server.url, "news", delay=0) as played:
        played.spider = unfiltered.__file__  # its start request has dont_filter=True, like Scrapy's
        played.site.answers = {"/news/3": 503}
        first = played.crawl(chosen, "first")
        assert Counter(played.site.paths) == dict.fromkeys({*lists, "/news/1", "/news/2", "/news/3"}, 1)
        played.site.answers = {}
        played.site.links = {**links, "/news/": ["/news/page/2", "/news/4", "/news/1"]}
        played.site.fetched.clear()
        second = played.crawl(chosen, "second")
        assert Counter(played.site.paths) == dict.fromkeys({*lists, "/news/3", "/news/4"}, 1)
    assert_ended_well(first, second)


def test_unique_items(tmp_path: Path) -> None:
    """Each item is stored once in two runs, and again after the command of the page. The function returns a key."""
    settings, function = blocks("unique-items.md", "python")
    names: dict[str, Any] = {}
    exec(function, names)  # noqa: S102  # as above
    assert (names["key_of"]({"isbn": "0"}), names["key_of"]({})) == ("0", None)
    # A command line takes text.
    chosen: dict[str, object] = {
        name: json.dumps(value).strip('"') for name, value in settings_of(settings, {}).items()
    }
    chosen |= {"ITEMS": 2, "DUPEFILTER_CLASS": None, "SCHEDULER_FLUSH_ON_START": True}
    with running("valkey") as server, server.client() as client:
        chosen |= {"REDIS_URL": server.url, "REDIS_ITEMS_KEY": "items"}
        with scene(star(5), tmp_path, server.url, "news", delay=0) as played:
            played.spider = storing.__file__
            for name in ("first", "second"):
                assert_ended_well(played.crawl(chosen, name))
                assert client.llen("items") == 5
        (key,) = [line[line.index("--key") + 1] for line in shell("unique-items.md", begins=".*clear")]
        filter_key = key.replace("news", LinksSpider.name)
        assert client.exists(filter_key)
        done = command.run("clear", "--key", filter_key, "--redis-url", server.url, "--yes", cwd=tmp_path)
        assert done.returncode == 0
        assert [each for each in client.keys(f"*{filter_key}*") if b":claim:" not in each] == []


def test_shared_delay(tmp_path: Path) -> None:
    """Two workers with the page's settings, and a smaller delay, reserve a moment for each request."""
    (settings,) = blocks("shared-delay.md", "python")
    chosen = {**OURS, **settings_of(settings, {})}
    assert chosen["DOWNLOAD_DELAY"] > 1
    with running("valkey") as server, scene(tree(10), tmp_path, server.url, "news", delay=0) as played:
        ended = played.crawl_by("one", "other", kind={**chosen, "DOWNLOAD_DELAY": 0.05})
        assert_complete(played, *ended)
        moments = sum(each.stats.get(RESERVED, 0) - each.stats.get(WASTED, 0) for each in ended)
        assert moments == len(played.site.fetched)


FIFO, LIFO = ({"SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{order}Queue"} for order in ("Fifo", "Lifo"))


@pytest.mark.parametrize(
    ("chosen", "is_broad"),
    [({"DEPTH_PRIORITY": 1}, True), ({"DEPTH_PRIORITY": -1}, False), (FIFO, True), (LIFO, False)],
    ids=["breadth", "depth", "fifo", "lifo"],
)
def test_orders(chosen: dict[str, Any], is_broad: bool, tmp_path: Path) -> None:
    """By each setting of the page a worker crawls a tree level by level, or one branch after another."""
    page, (settings, _) = " ".join(text_of("orders.md").split()), blocks("orders.md", "python")
    ((name, value),) = chosen.items()
    assert f"`{name} = {json.dumps(value)}`" in page
    assert settings_of(settings, {}) | OURS | FIFO == settings_of(settings, {}) | OURS
    one_by_one = {**OURS, **chosen, "CONCURRENT_REQUESTS": 1}
    with running("valkey") as server, scene(tree(40), tmp_path, server.url, "news", delay=0) as played:
        ended = played.crawl(one_by_one, "worker")
        assert_complete(played, ended)
        depths = [depth_in_tree(path) for path in played.site.paths if path != "/robots.txt"]
    # Of 40 pages 13 are above the lowest level. Scrapy takes the next request before the page is parsed.
    assert depths == sorted(depths) if is_broad else depths.index(3) < 8


def depth_in_tree(path: str) -> int:
    """Return how many links lead from the first page to a page of `tree`."""
    number, depth = int(path.rpartition("/")[2] or 0), 0
    while number:
        number, depth = (number - 1) // FANOUT, depth + 1
    return depth


def test_redis_cli() -> None:
    """The server executes the commands."""
    with running("valkey") as server, server.client(decode_responses=True) as client:
        for _, *words in shell(*EVERY_PAGE, begins=REDIS_CLI):
            client.execute_command(*words)
        assert client.config_get("appendonly") == {"appendonly": "yes"}


def test_every_command_is_run() -> None:
    """Each line of a shell block is run by a test, or has a reason why not."""
    found = [(page, block) for page in EVERY_PAGE for kind in SHELLS for block in blocks(page, kind)]
    lines = [f"{page}: {line.removeprefix('$ ')}" for page, block in found for line in block.splitlines() if line]
    assert [line for line in lines if not re.match(rf"{CRAWLS}|\S+: ({'|'.join([*RUN, *NOT_RUN])})", line)] == []
