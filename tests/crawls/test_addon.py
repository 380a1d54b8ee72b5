"""Scrapy's commands in a project with the add-on and no other setting of this package."""

from pathlib import Path

import pytest

from devtools.site import serving
from tests.crawls import test_refused_start as refused
from tests.support import forked
from tests.support.pages import tree
from tests.support.servers import Server

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
