"""Every fenced block of the README and of the pages is run by a test, or stands in the table of the parsed ones."""

import inspect
import json
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scrapy import Request, Spider

from devtools.crawl_process import LIMIT
from devtools.site import serving
from scrapy_bloom import RedisSpider
from tests.project.test_page_deploy import Container
from tests.support.documentation import DOCS, EVERY_PAGE, Block, all_blocks, blocks
from tests.support.pages import linked
from tests.support.servers import running


class Rule(NamedTuple):
    """The lines of the shell, or the blocks of another language, that a test runs."""

    pages: str
    language: str
    begins: str
    test: str


SHELLS = ("bash", "console")
RUN = (
    Rule(".*", "pycon", "", "test_snippets.test_sessions"),
    Rule(".*", "bash|console", r"(\$ )?scrapy bloom ", "test_page_commands.test_command"),
    Rule("commands.md", "text", "", "test_page_commands.test_command"),
    Rule("start.md|../README.md", "text", "", "test_start.test_start"),
    Rule("start.md", "bash", "scrapy crawl ", "test_start.test_start"),
    Rule("tutorial.md", "python", "", "test_snippets.test_tutorial_shares_a_crawl"),
    Rule("tutorial.md", "text", "", "test_snippets.test_tutorial_shares_a_crawl"),
    Rule("tutorial.md", "bash", "scrapy |cd |cat |redis-cli ", "test_snippets.test_tutorial_shares_a_crawl"),
    Rule("(?!tutorial).*", "python", r"(?s)(.*\n)?[A-Z_]+ = ", "test_page_settings.test_settings_blocks"),
    Rule("api.md", "python", "from redis", "test_snippets.test_api"),
    Rule("deploy.md", "python", '"""alive.py', "test_snippets.test_probe"),
    Rule("deploy.md", "dockerfile", "", "test_page_deploy.test_stopped_container"),
    Rule("deploy.md", "yaml", "", "test_page_deploy.test_manifests"),
    Rule("monitoring.md", "ini", "", "test_page_deploy.test_units"),
    Rule("monitoring.md", "yaml", "", "test_page_deploy.test_alerts"),
    Rule("access.md", "text", "ACL SETUSER", "test_page_access.test_user"),
    Rule("start-over.md", "bash", "scrapy crawl ", "test_page_blocks.test_start_over"),
    Rule("start-requests.md", "python", "async def start", "test_page_blocks.test_start_requests"),
    Rule("start-requests.md", "python", "class NewsSpider", "test_page_blocks.test_start_urls"),
    Rule("start-urls.md", "python", "from scrapy_bloom", "test_page_blocks.test_start_urls"),
    Rule("start-urls.md", "bash", "redis-cli ", "test_page_blocks.test_start_urls"),
    Rule("(backup|from-bloomfilter).md", "bash", "redis-cli (config set|unlink) ", "test_page_blocks.test_redis_cli"),
    Rule("recrawl.md", "text", "All 100 requests", "test_page_blocks.test_log_lines"),
    Rule("../README.md", "bash", "make ", "test_page_blocks.test_targets"),
    Rule(
        "(performance|large|servers).md",
        "bash",
        r"(\w+=\S+ )?make |(\.venv/bin/)?python -m ",
        "test_page_blocks.test_targets",
    ),
)
# With the reason.
PARSED = {
    ("deploy.md", "bash", "docker "): "needs Docker's daemon; test_page_deploy compares its names with the Dockerfile",
    ("deploy.md", "bash", "kubectl "): "needs a cluster; the Secret has the name and the key of the manifest",
    ("deploy.md", "bash", "curl "): "needs a Scrapyd; run by hand with Scrapyd 1.6.0",
    ("backup.md", "bash", "redis-cli config rewrite"): "needs a server with a configuration file",
    (
        ".*",
        "bash",
        "python3 -m venv |. .venv/|pip (install|wheel) ",
    ): "an installation: `nox -s wheel` does it from the wheel",
    ("tutorial.md", "bash", "redis-server|docker run "): "the tests start servers of their own",
    ("classes.md", "{eval-rst}", ""): "`make docs` builds it, and its warnings are errors",
    (".*", "", ""): "a picture of text",
    (".*", "mermaid", ""): "a picture, which the site draws",
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
    """A new block needs a test that runs it."""
    rules = [*(rule[:3] for rule in RUN), *PARSED]
    found = list(units())
    assert [block for block in found if not any(is_match(block, *rule) for rule in rules)] == []
    unused = [rule for rule in rules if not any(is_match(block, *rule) for block in found)]
    assert [rule for rule in unused if rule not in list(PARSED)[-2:]] == []


@pytest.mark.parametrize("name", sorted({rule.test for rule in RUN}))
def test_rules(name: str) -> None:
    """The tests that the table names exist."""
    module, function = name.split(".")
    assert inspect.isfunction(getattr(import_module(f"tests.project.{module}"), function))


def test_start_over(tmp_path: Path) -> None:
    """The command fetches every page again, although the filter knows them."""
    ((line,),) = [
        [line for line in block.splitlines() if line.startswith("scrapy crawl")]
        for block in blocks("start-over.md", "bash")
        if "scrapy crawl" in block
    ]
    with running("valkey") as server, serving(linked(10)) as site:
        container = Container(tmp_path, server, site)
        for _ in range(2):
            with container.started(shlex.split(line)) as process:
                assert process.wait(LIMIT) == 0
        assert all(site.paths.count(path) >= 2 for path in site.links)


def test_start_requests() -> None:
    """The method sends the start URLs through the filter."""
    (block,) = (block for block in blocks("start-requests.md", "python") if "async def start" in block)
    names: dict[str, Any] = {"Request": Request}
    exec(block, names)  # noqa: S102  # our own documentation
    spider = type("PageSpider", (Spider,), {"start": names["start"], "start_urls": ["https://example.com/"]})("page")

    async def read() -> list[Request]:
        return [request async for request in spider.start()]

    # Without a loop: `asyncio.run` would drop the one of this process, unclosed.
    with pytest.raises(StopIteration) as end:
        read().send(None)
    (request,) = end.value.value
    assert request.url == "https://example.com/"
    assert not request.dont_filter


def test_start_urls() -> None:
    """The entries become requests of a spider of the page's class, and a dead letter returns to its key.

    The class of the page on start requests sends the same requests through the filter.
    """
    (block,) = (block for block in blocks("start-urls.md", "python") if "import" in block)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102  # as above
    assert names["RedisSpider"] is RedisSpider
    lines = [shlex.split(line) for block in blocks("start-urls.md", "bash") for line in block.splitlines()]
    with running("valkey") as server, server.client() as client:
        client.rpush("{news:start_urls}:dead-letter", "https://example.com/bad")
        for _, *words in lines:
            client.execute_command(*words)
        entries = client.lrange("news:start_urls", 0, -1)
    (block,) = (block for block in blocks("start-requests.md", "python") if "RedisSpider" in block)
    exec(block, names)  # noqa: S102  # as above
    for spider, dont_filter in ((RedisSpider("news"), True), (names["NewsSpider"](), False)):
        spider.redis_encoding = "utf-8"
        requests = [spider.make_request_from_data(entry) for entry in entries]
        assert [request.url for request in requests] == [
            "https://example.com/",
            "https://example.com/?page=2",
            "https://example.com/bad",
        ]
        assert requests[1].meta == json.loads(entries[1])["meta"]
        assert {request.dont_filter for request in requests} == {dont_filter}


def test_redis_cli() -> None:
    """The server executes the commands."""
    lines = [
        line
        for page in ("backup.md", "from-bloomfilter.md")
        for block in blocks(page, "bash")
        for line in block.splitlines()
    ]
    with running("valkey") as server, server.client(decode_responses=True) as client:
        for line in lines:
            if re.match("redis-cli (config set|unlink) ", line):
                client.execute_command(*shlex.split(line)[1:])
        assert client.config_get("appendonly") == {"appendonly": "yes"}


def test_log_lines() -> None:
    """The text of a log line is the code's, without its variable parts."""
    (block,) = (block for block in blocks("recrawl.md", "text"))
    source = (DOCS.parent / "scrapy_bloom" / "monitoring" / "reporter.py").read_text()
    code = re.sub(r'"\s*\n\s*f?"', "", source)
    parts = re.split(r"'[^']*'|…|\b[\d.]+\b|[.:,]|SCHEDULER_FLUSH_ON_START = ?\n?True", " ".join(block.split()))
    # The words at the edges may be variable.
    inner = [" ".join(part.split()[1:-1]) for part in parts if len(part.split()) > 4]
    assert len(inner) > 3
    assert [each for each in inner if each not in code] == []


def test_targets() -> None:
    """Each target of make exists, and each module that a page runs."""
    makefile = (DOCS.parent / "Makefile").read_text()
    for block in units():
        if block.language == "bash" and (found := re.match(r"(?:\w+=\S+ )?make (\S+)", block.text)):
            target = found[1].replace(".venv/", "$(VENV)/")
            assert re.search(rf"^{re.escape(target)}:|^\$\(VENV\)/\.%:", makefile, re.MULTILINE), block.text
        elif block.language == "bash" and (found := re.match(r"(?:\.venv/bin/)?python -m (\w+)", block.text)):
            assert found[1] == "venv" or (DOCS.parent / found[1]).is_dir(), block.text
