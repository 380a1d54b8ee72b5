"""Every block of settings on a page is accepted by the add-on."""

import ast
import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy_redis.connection import get_redis_from_settings

from scrapy_bloom import Addon
from scrapy_bloom.transport.connect import RedisSettings

ROOT = Path(__file__).parents[2]
PAGES = [path for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")) if "```python" in path.read_text()]
SECRET = "a/b:c@d%"  # noqa: S105  # of no server
# The address of a node.
REFUSES = "127.0.0.1:1"


class PageSpider(Spider):
    """A spider of the pages' crawls."""

    name = "news"


def settings_of(block: str, names: dict[str, Any]) -> dict[str, Any]:
    """Execute a block with the names of the blocks above it; return the settings among its own names, if any."""
    tree = ast.parse(block)
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    chosen = {name for name in assigned if name.isupper()}
    if chosen:
        exec(block, names)  # noqa: S102  # our own documentation
    return {name: names[name] for name in chosen}


def apply(chosen: dict[str, Any]) -> Settings:
    """Return settings to which the add-on was applied, after making the client.

    It connects at its first command, and that of a cluster at once: its nodes refuse the connection.
    """
    settings = Settings(chosen)
    Addon(Crawler(PageSpider, settings)).update_settings(settings)
    with contextlib.suppress(redis.exceptions.ConnectionError, redis.exceptions.RedisClusterException):
        client = get_redis_from_settings(RedisSettings(settings).for_scrapy_redis())
        assert client.get_connection_kwargs().get("password") in (None, SECRET, "password")
    return settings


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_blocks(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The add-on accepts the settings of each block, with values from the environment, and sets the scheduler."""
    text = re.sub(r"\bnode-\d:\d+", REFUSES, page.read_text())
    for name in set(re.findall(r'environ\["(\w+)"\]', text)):
        monkeypatch.setenv(name, "redis://localhost:6379" if name.endswith("URL") else SECRET)
    names: dict[str, Any] = {}
    found = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(found) == text.count("```python")
    for block in found:
        if chosen := settings_of(block, names):
            assert apply(chosen)["SCHEDULER"] == "scrapy_bloom.BloomScheduler"
