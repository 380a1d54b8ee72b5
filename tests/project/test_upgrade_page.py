"""The page on upgrades quotes the log lines and errors of a release that is too old."""

import json
import re
from pathlib import Path
from zipfile import ZipFile

import pytest
import redis

from devtools.crawl_process import ROOT
from scrapy_bloom import BloomFilter, MismatchError, codec
from scrapy_bloom.cli.export import DESCRIPTION
from scrapy_bloom.filter.parameters import FORMAT
from tests.support import command
from tests.support.servers import Server

PAGE = (ROOT / "docs" / "upgrade.md").read_text()


def quoted(data: str) -> str:
    """Return the quotation in a row of the table."""
    (text,) = re.findall(rf"^\| a\S* {data}.*\| .*?: `(.*)` \|$", PAGE, re.MULTILINE)
    return str(text)


def test_filter(client: redis.Redis, key: str) -> None:
    """A newer filter is refused, and not changed."""
    BloomFilter(client, key)
    stored = json.loads(client.hget(key, "parameters") or "")
    client.hset(key, "parameters", json.dumps({**stored, "format": FORMAT + 1}))
    before = client.hgetall(key)
    with pytest.raises(MismatchError, match=re.escape(quoted("filter"))):
        BloomFilter(client, key)
    assert client.hgetall(key) == before


def test_export(server: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A newer export is refused."""
    newer = tmp_path / "news.bloom"
    with ZipFile(newer, "w") as archive:
        archive.writestr(DESCRIPTION, json.dumps({"format": FORMAT + 1}))
    assert command.call("restore", "--key", key, "--redis-url", server.url, str(newer)) == 2
    assert quoted("export") in capsys.readouterr().err


def test_request() -> None:
    """The log line of an unreadable request."""
    assert quoted("request") in Path(codec.__file__).read_text()
