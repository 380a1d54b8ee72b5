"""Crawls with unusual parts: failing stats, keys with percent signs, a filter shared by spiders, the add-on alone."""

import re
from pathlib import Path

import pytest

from devtools.site import serving
from tests.crawls import test_refused_start as refused
from tests.support import forked
from tests.support.documentation import blocks
from tests.support.extensions import FaultyStats
from tests.support.outcomes import assert_complete, assert_ended_well
from tests.support.pages import tree
from tests.support.scenario import LEASE, OURS, PAGES, Kind, keys_of, scene
from tests.support.servers import Server
from tests.support.spiders import keyed


def test_stats_that_fail(valkey: Server, key: str, tmp_path: Path) -> None:
    """A stats collector that always raises costs no request, and the crawl ends."""
    settings: Kind = {**OURS, **LEASE, "STATS_CLASS": f"{FaultyStats.__module__}.{FaultyStats.__qualname__}"}
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        ended = played.crawl(settings)
        assert played.missed == set()
        assert keys_of(client, key) == set()
    assert ended.exit_code == 0
    assert ended.stats["finish_reason"] == "finished"


@pytest.mark.parametrize("way", ["attribute", "from_crawler"])
def test_keys_by_an_attribute(way: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """Two jobs of one spider, by an attribute in the keys or by its `from_crawler`, share neither queue nor filter."""
    names = {f"SCHEDULER_{part}_KEY": f"{key}:%(job)s:{part.lower()}" for part in ("QUEUE", "DUPEFILTER")}
    keys = names if way == "attribute" else {**dict.fromkeys(names), "KEYS": key}
    kind: Kind = {**OURS, **keys, "SCHEDULER_PERSIST": True}
    with valkey.client() as client, scene(tree(40), tmp_path, valkey.url, key) as played:
        played.spider = keyed.__file__
        ended = [played.crawl({**kind, "JOB": number}, f"job{number}") for number in (1, 2)]
        assert played.fetched == dict.fromkeys(tree(40), 2)
        assert {f"{key}:{number}:dupefilter" for number in (1, 2)} <= keys_of(client, key)
    assert_ended_well(*ended)


@pytest.mark.parametrize("other", ["news", "shop"], ids=["keys of the page", "common keys"])
def test_two_projects(other: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """Spiders of the same name in two projects take each other's requests, but not with the keys of the page."""
    (block,) = (block for block in blocks("sharing.md", "python") if "SCHEDULER_QUEUE_KEY" in block)
    keys = dict(re.findall(r'^(\w+) = "shop:(.*)"$', block, re.MULTILINE))
    ours, theirs = (
        {**OURS, **{name: f"{key}:{project}:{rest}" for name, rest in keys.items()}} for project in ("shop", other)
    )
    stopped: Kind = {"SCHEDULER_PERSIST": True, "CLOSESPIDER_PAGECOUNT": 5, "CONCURRENT_REQUESTS": 1}
    with scene(tree(40), tmp_path, valkey.url, key) as ourselves, scene(tree(40), tmp_path, valkey.url, key) as others:
        ourselves.crawl({**ours, **stopped}, "ours")
        ended = others.crawl(theirs, "theirs")
        assert_complete(others, ended)
    are_mixed = any(url.startswith(ourselves.site.url) for url in ended.fetched)
    assert are_mixed == (other == "shop")


# Scrapy's commands in a project with the add-on and no other setting of this package.


ADDONS: refused.Settings = {"ADDONS": {"scrapy_bloom.Addon": 500}, "TELNETCONSOLE_ENABLED": False}
COMMANDS = {
    "list": ((), "refused"),
    "fetch": (("--nolog",), "<a href="),
    "shell": (("--nolog", "-c", "response.status"), "200"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, tmp_path: Path) -> None:
    """Commands that do not crawl work as usual, and never connect to Redis."""
    options, part = COMMANDS[command]
    settings = {**ADDONS, "REDIS_URL": "redis://127.0.0.1:1", "SPIDER_MODULES": "spider"}
    (tmp_path / "project.py").write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    with serving(tree(3)) as site:
        urls = () if command == "list" else (site.url,)
        ended = forked.run([command, *urls, *options], tmp_path, refused.prepared(tmp_path, "project"))
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert part in ended.stdout


def test_without_a_project(valkey: Server, key: str, tmp_path: Path) -> None:
    """The add-on works from the command line, too, where its setting is text."""
    settings = refused.stored_settings(valkey, key, "") | {
        "RETRY_ENABLED": False,
        "ADDONS": '{"scrapy_bloom.Addon": 1}',
    }
    for name in ("SCHEDULER", "DUPEFILTER_CLASS"):
        del settings[name]
    ended = refused.with_runspider(tmp_path, settings)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "SCHEDULER = 'scrapy_bloom.BloomScheduler' was set" in ended.stderr
    assert "This worker is " in ended.stderr
