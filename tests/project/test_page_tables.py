"""The tables of settings, stats, keys, commands and messages on the pages are those of the code."""

import argparse
import ast
import inspect
import re
from dataclasses import fields

import pytest
from scrapy.settings import Settings

from scrapy_bloom import report as stats
from scrapy_bloom.cli.bloom import _HELP, ACTIONS, module_of
from scrapy_bloom.cli.console import ExitCode
from scrapy_bloom.cli.doctor import CHECKS, name_of
from scrapy_bloom.components import WITHOUT_EFFECT
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.settings import (
    _OF_FORKS,
    ITEM_KEY,
    OPTIONS,
    RETRY_FAILED,
    RETRY_STATUSES,
    SHARED_DELAY,
    BloomSettings,
)
from scrapy_bloom.transport.urls import SCHEMES
from tests.support.documentation import EVERY_PAGE, ROOT, section, table, tables, text, text_of

STATS = {*stats.NAMES, stats.ENQUEUED, stats.DEQUEUED}


def test_settings() -> None:
    """Every setting has its row, by which the code reads and refuses it, with its default and the allowed values."""
    rows = {name.strip("`"): rest for name, *rest in table("docs/settings.md", "BLOOMFILTER settings")}
    assert [*rows] == [option.setting for option in OPTIONS]
    assert [*rows.values()] == [[option.default_text, option.meaning] for option in OPTIONS]
    for each, (default, _) in zip(fields(BloomSettings), rows.values(), strict=False):
        assert float(default.replace(",", "")) == (each.default or 0)
    allowed = table("docs/settings.md", "Allowed values")
    assert allowed == [[f"`{option.setting}`", option.allowed] for option in OPTIONS]


def test_settings_without_a_number() -> None:
    """The settings of failed pages and of the shared delay have a row each, with their defaults."""
    sections = "Pages that failed", "One delay for all workers"
    found = [row for each in sections for row in table("docs/settings.md", each)]
    rows = {row[0].strip("`"): row[1].strip("`") for row in found}
    assert tuple(rows) == (RETRY_FAILED, RETRY_STATUSES, SHARED_DELAY)
    read = BloomSettings.from_settings(Settings({name: ast.literal_eval(value) for name, value in rows.items()}))
    assert read == BloomSettings()


def test_setting_of_items() -> None:
    """The setting of items has a row, with its default."""
    assert [row[:2] for row in table("docs/settings.md", "Items")] == [[f"`{ITEM_KEY}`", str(BloomSettings().item_key)]]


def test_kinds_of_servers() -> None:
    """Each beginning of a URL has a row."""
    rows = [row[0].strip("`") for row in table("docs/connect.md", "Kinds of servers")]
    assert sorted(row.partition("://")[0] + "://" for row in rows) == sorted(SCHEMES)


def test_stats() -> None:
    """Every stat has its row."""
    assert {row[0].strip("`") for row in table("docs/deploy.md", "Stats")} == STATS


def test_settings_of_forks() -> None:
    """Each refused setting of a fork has its row, with the settings that the error names."""
    word = r"[A-Z]+_[A-Z_]+(?: = '[^']+')?"
    rows = table("docs/from-others.md", "Settings")
    found = {name.strip("` "): re.findall(word, instead) for names, instead in rows for name in names.split(",")}
    assert found == {name: re.findall(word, advice) for name, advice in _OF_FORKS.items()}


def test_settings_without_effect() -> None:
    """Each ignored setting of another scheduler has its row."""
    rows = table("docs/settings.md", "Settings without effect")
    assert sorted(name.strip("` ") for names, _ in rows for name in names.split(",")) == sorted(WITHOUT_EFFECT)


@pytest.mark.parametrize("page", [*EVERY_PAGE, "../README.zh-CN.md", "../CHANGELOG.md"])
def test_stats_that_are_named(page: str) -> None:
    """Every stat that a page names is one of the code."""
    old = {"bloomfilter/filtered"} if page == "from-others.md" else set()
    assert set(re.findall(r"(?<![\w/])(?:bloomfilter|scheduler|dupefilter)/[\w/]+", text_of(page))) <= STATS | old


def test_keys() -> None:
    """The patterns of the keys are those of the code."""
    of_queue = QueueKeys("<queue>")
    assert [row[0].strip("`") for row in table("docs/keys.md", "Keys")] == [
        "<key>",
        "{<key>}:<id>:<layer>:<shard>",
        of_queue.crawl,
        of_queue.workers,
        *of_queue.of_worker("<worker>"),
        of_queue.dead_letters,
        of_queue.failed,
        of_queue.deaths,
        of_queue.ended,
        of_queue.rest,
        of_queue.of_slot("<slot>"),
    ]


def test_actions() -> None:
    """Every action has its row, a section, and an entry for its JSON output."""
    first = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \| (.*) \|$", text("docs/commands.md"), re.MULTILINE)
    assert {name: purpose for name, _, purpose in first} == ACTIONS
    assert [name for name, anchor, _ in first if name != anchor] == []
    headings = re.findall(r"^## (.*)$", text("docs/commands.md"), re.MULTILINE)
    assert headings == ["Options of every action", *ACTIONS, "Server permissions"]
    headings = re.findall(r"^### (.*)$", section("docs/api.md", "JSON output"), re.MULTILINE)
    assert headings == list(ACTIONS)


def options_of(action: str) -> dict[str, str]:
    """Return the options of an action's parser with their help, as the page writes them."""
    parser = argparse.ArgumentParser(add_help=False)
    module_of(action).add_options(parser)
    found = {}
    for option in parser._actions:
        if option.option_strings and option.help:
            value = f"{{{','.join(option.choices)}}}" if option.choices else option.metavar or option.dest.upper()
            value = "" if option.nargs == 0 else f" [{value}]" if option.nargs == "?" else f" {value}"
            found[option.option_strings[0] + value] = option.help.replace("%(default)s", str(option.default))
    return found


@pytest.mark.parametrize("action", ACTIONS)
def test_options_of_actions(action: str) -> None:
    """Every option of an action is on its page with the parser's help, and no other."""
    common, of_filters = table("docs/commands.md", "Options of every action"), tables("docs/commands.md", "plan")[-1]
    own = re.findall(r"^\| (`-.*?`) \| (.*) \|$", section("docs/commands.md", action), re.MULTILINE)
    shown = {row[0].strip("`"): row[1].replace("`", "") for row in (*common, *of_filters, *own)}
    parsed = options_of(action)
    assert {name: shown.get(name) for name in parsed} == parsed
    assert {name for name, _ in own} <= {f"`{name}`" for name in parsed}


def test_exit_codes() -> None:
    """The exit codes on their page are those of the code and of the help, and so are the actions that answer no."""
    codes, negative = tables("docs/api.md", "Exit codes of `scrapy bloom`")
    assert [int(code) for code, _ in codes] == [*ExitCode]
    helped = re.findall(r"^  (\d+): (.*)$", _HELP, re.MULTILINE)
    assert [[code, meaning.partition(";")[0]] for code, meaning in codes] == [list(each) for each in helped]
    answering = {action for action in ACTIONS if "answer=" in inspect.getsource(module_of(action))}
    assert {row[0].strip("`") for row in negative} == answering


def test_checks() -> None:
    """Every check of `doctor` has a row, and each row a check."""
    rows = tables("docs/commands.md", "doctor")[-1]
    assert {row[0] for row in rows} | {"versions"} == {name_of(check) for checks in CHECKS.values() for check in checks}


def test_messages() -> None:
    """The messages on their page are those of the code, without their variable parts."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "scrapy_bloom").rglob("*.py")]
    said = {str(node.value) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    quoted = re.findall(r"^\| `(.+?)`", text("docs/messages.md"), re.MULTILINE)
    parts = [part.strip() for each in quoted for part in each.split("…") if part.strip()]
    assert parts
    assert [part for part in parts if not any(part in each for each in said)] == []
