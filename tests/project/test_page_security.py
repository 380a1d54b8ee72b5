"""The Redis user on the page of connections can crawl, and may do nothing else."""

import os
import re
from pathlib import Path

import pytest
import redis

from devtools.site import serving
from scrapy_bloom.transport.failures import FILTER_COMMANDS, QUEUE_COMMANDS, advice_for
from tests.support import command, forked
from tests.support.documentation import blocks
from tests.support.pages import linked
from tests.support.servers import running

SPIDERS = """
from scrapy_bloom import RedisSpider


class NewsSpider(RedisSpider):
    name = "news"

    def parse(self, response):
        yield from response.follow_all(css="a")
"""
PAGES = 30


def rules() -> list[list[str]]:
    """Return the words of each rule."""
    return [block.split() for block in blocks("connect.md", "text")]


def test_commands() -> None:
    """The rule has exactly the commands that `doctor` tries, and so has the advice of a refused command."""
    allowed = {word[1:].upper() for word in rules()[0] if word.startswith("+")}
    assert allowed == {*FILTER_COMMANDS, *QUEUE_COMMANDS}
    assert allowed == {*re.findall(r"\b[A-Z]{3,}\b", f"{advice_for(redis.exceptions.NoPermissionError())}")}


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_user(kind: str, tmp_path: Path) -> None:
    """The user crawls a site from a start URL with a filter that grows and expires, and may not read other keys."""
    with running(kind) as server, serving(linked(PAGES)) as site, server.client() as client:
        for rule in rules():
            client.execute_command(*rule)
        client.rpush("news:start_urls", f"{site.url}/")
        url = server.url.replace("//", "//crawler:password@")
        settings = {"SCHEDULER_PERSIST": True, "TELNETCONSOLE_ENABLED": False, "CLOSESPIDER_PAGECOUNT": PAGES}
        settings |= {"BLOOMFILTER_CAPACITY": 10, "BLOOMFILTER_TTL": 3600}
        project = command.make_project(tmp_path, REDIS_URL=url, **settings)
        (project / "project" / "spiders.py").write_text(SPIDERS)
        done = forked.run(("crawl", "news"), project, os.environ)
        assert done.returncode == 0, done.stderr
        assert len(site.fetched) >= PAGES, done.stderr
        assert "NOPERM" not in done.stderr
        assert client.keys("news:start_urls") == []
        assert client.pttl("news:dupefilter") > 0
        assert re.search(r"in [2-9] layers", done.stderr)
        with redis.Redis.from_url(url) as crawler, pytest.raises(redis.exceptions.NoPermissionError):
            crawler.hget("other:dupefilter", "filter")
