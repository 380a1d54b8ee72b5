"""The tables of the README say what the code does."""

import re
from dataclasses import fields
from pathlib import Path

from scrapy_bloom import MemoryBloomFilter, keys, stats
from scrapy_bloom.config import SETTINGS, BloomConfig
from scrapy_bloom.options import DEFAULT_ERROR_RATE
from scrapy_bloom.sizing import Size, error_rate_at
from tests.project.test_imports import ROWS

ROOT = Path(__file__).parents[2]


def table(file: str, heading: str) -> list[list[str]]:
    """The rows of the first table behind a heading, without the head, as their cells."""
    section = (ROOT / file).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_settings() -> None:
    """Every setting has its row, with its default."""
    rows = {row[0].strip("`"): row[1] for row in table("README.md", "Settings")}
    assert tuple(rows) == SETTINGS
    for each, default in zip(fields(BloomConfig), rows.values(), strict=True):
        assert float(default.replace(",", "")) == (each.default or 0)


def test_stats() -> None:
    """Every stat has its row."""
    assert {row[0].strip("`") for row in table("README.md", "Stats")} == set(stats.NAMES)


def test_pages_missed() -> None:
    """The pages that a crawl is expected to miss, and the memory, are those of a filter of the default capacity.

    The pages are the sum of the error rates that the additions meet, taken here over a thousand steps.
    """
    rows = table("README.md", "What an error rate means for a crawl")[:-1]
    assert float(rows[0][1]) == DEFAULT_ERROR_RATE
    for _, error_rate, missed, memory in rows:
        (layer,) = MemoryBloomFilter(error_rate=float(error_rate)).info().by_layer
        size = Size(layer.hashes, layer.bits, layer.shards)
        pages = sum(1000 * error_rate_at(size, 1000 * step + 500) for step in range(1000))
        decimals = len(missed.partition(".")[2])
        assert f"{pages:.{decimals}f}" == missed
        assert f"{layer.memory_bytes / 1e6:.1f} MB" == memory


def test_keys() -> None:
    """The patterns of the keys are those that the code makes."""
    patterns = [row[0].strip("`") for row in table("README.md", "What is stored")]
    assert patterns == [
        "<key>",
        keys.shard_key("<key>", 1, 2).replace(":1:2", ":<layer>:<shard>"),
        keys.held_key("<queue>", "<worker>"),
        keys.workers_key("<queue>"),
        keys.closing_key("<queue>"),
        keys.unreadable_key("<queue>"),
        keys.recovery_key("<queue>", "<worker>"),
    ]
    assert keys.layer_of_field(keys.layer_field(7)) == 7


def test_modules() -> None:
    """The rows of the architecture in CONTRIBUTING are those that the imports are held to."""
    rows = [set(re.findall(r"`(\w+)`", row[1])) for row in table("CONTRIBUTING.md", "Where things are")]
    assert rows == list(ROWS)
