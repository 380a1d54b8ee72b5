"""The page on upgrades quotes the log lines and errors of a release that is too old."""

import json
import logging
import re
from pathlib import Path

import pytest
import redis

from devtools.crawl_process import ROOT
from scrapy_bloom import BloomFilter, ConfigError, MismatchError
from scrapy_bloom.cli.archive.file_format import FORMATS, Archive
from scrapy_bloom.delivery import codec
from scrapy_bloom.filter import parameters
from scrapy_bloom.spool.directory import SpoolDirectory
from scrapy_bloom.spool.file import FORMAT
from tests.support.undelivered import leave

PAGE = (ROOT / "docs" / "upgrade.md").read_text()


def quoted(data: str) -> str:
    """Return the quotation in a row of the table."""
    (text,) = re.findall(rf"^\| a\S* {data}.*\| .*?: `(.*)` \|$", PAGE, re.MULTILINE)
    return str(text)


def test_filter(client: redis.Redis, key: str) -> None:
    """A newer filter is refused, and not changed."""
    BloomFilter(client, key)
    stored = json.loads(client.hget(key, "filter") or "")
    client.hset(key, "filter", json.dumps({**stored, "format": parameters.FORMAT + 1}))
    before = client.hgetall(key)
    with pytest.raises(MismatchError, match=re.escape(quoted("filter"))):
        BloomFilter(client, key)
    assert client.hgetall(key) == before


def test_export(tmp_path: Path) -> None:
    """A newer export is refused."""
    newer = tmp_path / "news.bloom"
    newer.write_bytes(b"scrapy-bloom export %d\n" % (FORMATS[-1] + 1))
    with newer.open("rb") as file, pytest.raises(ConfigError, match=re.escape(quoted("export"))):
        Archive(newer, file)


def test_undelivered_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A newer file stays, with a warning."""
    path = leave(tmp_path, "queue", 1)
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    with caplog.at_level(logging.WARNING):
        assert list(SpoolDirectory("queue", tmp_path).load()) == []
    assert quoted("file") in caplog.text
    assert path.exists()


def test_request() -> None:
    """The log line of an unreadable request."""
    assert quoted("request") in Path(codec.__file__).read_text()
