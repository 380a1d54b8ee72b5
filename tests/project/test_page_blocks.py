"""Every fenced block of the README and of the pages is run by a test, or stands in the table of the parsed ones."""

import inspect
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider

from devtools.crawl_process import LIMIT
from devtools.site import serving
from scrapy_bloom import RedisSpider
from tests.project.test_page_deploy import Container
from tests.project.test_page_settings import settings_of
from tests.support.documentation import DOCS, EVERY_PAGE, Block, all_blocks, blocks
from tests.support.outcomes import assert_ended_well
from tests.support.pages import linked
from tests.support.scenario import OURS, scene
from tests.support.servers import running
from tests.support.spiders import unfiltered

SHELLS = ("bash", "console")
# Pages, language and beginning of the blocks that a test runs; of the shell it runs lines.
RUN: list[tuple[str, str, str, str]] = [
    (".*", "pycon", "", "test_snippets.test_sessions"),
    (".*", "bash|console", r"(\$ )?scrapy bloom ", "test_page_commands.test_command"),
    ("commands.md", "text", "", "test_page_commands.test_command"),
    ("start.md|../README.md", "text", "", "test_start.test_start"),
    ("start.md", "bash", "scrapy crawl ", "test_start.test_start"),
    ("tutorial.md", "python|text", "", "test_snippets.test_tutorial_shares_a_crawl"),
    ("tutorial.md", "bash", "scrapy |cd |cat |redis-cli ", "test_snippets.test_tutorial_shares_a_crawl"),
    ("(?!tutorial).*", "python", r"(?s)(.*\n)?[A-Z_]+ = ", "test_page_settings.test_settings_blocks"),
    ("api.md", "python", "from redis", "test_snippets.test_api"),
    ("deploy.md", "python", '"""alive.py', "test_snippets.test_probe"),
    ("deploy.md", "dockerfile", "", "test_page_deploy.test_stopped_container"),
    ("deploy.md", "yaml", "", "test_page_deploy.test_manifests"),
    ("monitoring.md", "ini", "", "test_page_deploy.test_units"),
    ("monitoring.md", "yaml", "", "test_page_deploy.test_alerts"),
    ("security.md", "text", "ACL SETUSER", "test_page_security.test_user"),
    ("resume.md", "bash", "scrapy crawl ", "test_page_blocks.test_start_over"),
    ("start-requests.md", "python", "async def start", "test_page_blocks.test_start_requests"),
    ("start-requests.md", "python", "class NewsSpider", "test_page_blocks.test_start_urls"),
    ("start-requests.md", "python", "from scrapy_bloom", "test_page_blocks.test_start_urls"),
    ("start-requests.md", "bash", "redis-cli ", "test_page_blocks.test_start_urls"),
    (
        *("backup.md|from-bloomfilter.md|capacity.md", "bash", "redis-cli (config set|unlink|memory usage|zcard) "),
        "test_page_blocks.test_redis_cli",
    ),
    ("../README.md|performance.md|servers.md", "bash", r"(\w+=\S+ )?make ", "test_page_blocks.test_targets"),
    ("performance.md|servers.md", "bash", r"(\.venv/bin/)?python -m ", "test_page_blocks.test_targets"),
]
# With the reason.
PARSED = {
    ("deploy.md", "bash", "docker "): "needs Docker's daemon; test_page_deploy compares its names with the Dockerfile",
    ("deploy.md", "bash", "kubectl "): "needs a cluster; the Secret has the name and the key of the manifest",
    ("deploy.md", "bash", "curl "): "needs a Scrapyd; run by hand with Scrapyd 1.6.0",
    (
        "integrations.md",
        "python",
        "from scrapy_playwright",
    ): "needs a browser; run with scrapy-playwright 0.0.48",
    ("backup.md", "bash", "redis-cli config rewrite"): "needs a server with a configuration file",
    (".*", "bash", "python3 -m venv |. .venv/|pip (install|wheel) "): "an installation, as `nox -s wheel` does it",
    ("tutorial.md", "bash", "redis-server|docker run "): "the tests start servers of their own",
    ("api.md", "{eval-rst}", ""): "`make docs` builds it, and its warnings are errors",
    (".*", "|mermaid", ""): "a picture",
}


def units() -> Iterator[Block]:
    """Yield each line of the shell, and each block of another language."""
    for page in EVERY_PAGE:
        for block in all_blocks(page):
            if block.language in SHELLS:
                yield from (block._replace(text=line) for line in block.text.splitlines() if line)
            else:
                yield block


def is_match(block: Block, pages: str, language: str, begins: str) -> bool:
    """Return whether a rule is for a block."""
    return (
        re.fullmatch(pages.replace("..", r"\.\."), block.page) is not None
        and re.fullmatch(language, block.language) is not None
        and re.match(begins, block.text) is not None
    )


def test_every_block_is_run() -> None:
    """A new block needs a test that runs it, each row has its blocks, and the named tests exist."""
    rules = [*(rule[:3] for rule in RUN), *PARSED]
    found = list(units())
    assert [block for block in found if not any(is_match(block, *rule) for rule in rules)] == []
    assert [rule for rule in rules if not any(is_match(block, *rule) for block in found)] == []
    for module, function in {tuple(test.split(".")) for *_, test in RUN}:
        assert inspect.isfunction(getattr(import_module(f"tests.project.{module}"), function))


def shell(*pages: str, begins: str) -> list[list[str]]:
    """Return the words of the pages' lines of the shell that begin so."""
    lines = [line for page in pages for block in blocks(page, "bash") for line in block.splitlines()]
    return [shlex.split(line) for line in lines if re.match(begins, line)]


def python(page: str, part: str) -> str:
    """Return the page's only block of Python that contains a text."""
    (block,) = (block for block in blocks(page, "python") if part in block)
    return block


def test_start_over(tmp_path: Path) -> None:
    """The command fetches every page again, although the filter knows them."""
    (line,) = shell("resume.md", begins="scrapy crawl")
    with running("valkey") as server, serving(linked(10)) as site:
        container = Container(tmp_path, server, site)
        for _ in range(2):
            with container.started(line) as process:
                assert process.wait(LIMIT) == 0
        assert all(site.paths.count(path) >= 2 for path in site.links)


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
    """The entries become requests of a spider of the page's class, and a dead letter returns to its key.

    The page's other class sends the same requests through the filter.
    """
    names: dict[str, Any] = {}
    exec(python("start-requests.md", "import"), names)  # noqa: S102  # as above
    assert names["RedisSpider"] is RedisSpider
    with running("valkey") as server, server.client() as client:
        client.rpush("{news:start_urls}:dead-letter", "https://example.com/bad")
        for _, *words in shell("start-requests.md", begins="redis-cli "):
            client.execute_command(*words)
        entries = client.lrange("news:start_urls", 0, -1)
    exec(python("start-requests.md", "class NewsSpider"), names)  # noqa: S102  # as above
    urls = [f"https://example.com/{end}" for end in ("", "?page=2", "bad")]
    for spider, dont_filter in ((RedisSpider("news"), True), (names["NewsSpider"](), False)):
        spider.redis_encoding = "utf-8"
        requests = [spider.make_request_from_data(entry) for entry in entries]
        assert [(request.url, request.dont_filter) for request in requests] == [(url, dont_filter) for url in urls]
        assert requests[1].meta == json.loads(entries[1])["meta"]


def test_incremental(tmp_path: Path) -> None:
    """Each run fetches the lists, and an article once. A later run fetches a new article, and a failed one."""
    (settings,) = blocks("incremental.md", "python")
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


def test_redis_cli() -> None:
    """The server executes the commands."""
    with running("valkey") as server, server.client(decode_responses=True) as client:
        for _, *words in shell(
            "backup.md", "from-bloomfilter.md", "capacity.md", begins="redis-cli (?!config rewrite)"
        ):
            client.execute_command(*words)
        assert client.config_get("appendonly") == {"appendonly": "yes"}


def test_targets() -> None:
    """Each target of make exists, and each module that a page runs."""
    makefile = (DOCS.parent / "Makefile").read_text()
    for block in units():
        if block.language == "bash" and (found := re.match(r"(?:\w+=\S+ )?make (\S+)", block.text)):
            target = found[1].replace(".venv/", "$(VENV)/")
            assert re.search(rf"^{re.escape(target)}:|^\$\(VENV\)/\.%:", makefile, re.MULTILINE), block.text
        elif block.language == "bash" and (found := re.match(r"(?:\.venv/bin/)?python -m (\w+)", block.text)):
            assert found[1] == "venv" or (DOCS.parent / found[1]).is_dir(), block.text
