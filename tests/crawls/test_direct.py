"""Crawls whose dupefilter is built as `cls(server, key, debug)`: the crawl's settings apply."""

import subprocess
import sys
from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT
from scrapy_bloom.settings import BloomSettings
from tests.support.direct import CAPACITIES, DIRECT
from tests.support.dupefilters import parameters_of
from tests.support.outcomes import assert_complete, complaints_in
from tests.support.pages import tree
from tests.support.scenario import scene
from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
WARNING = "was built without settings"


def test_settings_of_the_crawl_apply(valkey: Server, key: str, tmp_path: Path) -> None:
    """The filter has the crawl's capacity and fingerprints, without a warning, and an invalid setting is refused."""
    kind = {"SCHEDULER": DIRECT, "STEM": key, "SCHEDULER_PERSIST": True}
    scrapys = "scrapy.utils.request.RequestFingerprinter"
    with scene(tree(10), tmp_path, valkey.url, key) as played, valkey.client() as client:
        refused = played.crawl(kind, "refused", BLOOMFILTER_ERROR_RATE=2)
        crawled = played.crawl(kind, "crawled", REQUEST_FINGERPRINTER_CLASS=scrapys)
        stored = parameters_of(client, f"{key}:links")
        assert_complete(played, crawled)
    assert (stored["capacity"], stored["fingerprint"]) == (1000, scrapys)
    assert complaints_in(crawled.log) == []
    assert refused.exit_code == 1
    assert "scrapy_bloom: error_rate (BLOOMFILTER_ERROR_RATE) = '2': must" in refused.log


@pytest.mark.parametrize("way", ["alike", "together", "within"])
def test_two_crawls_in_a_script(way: str, valkey: Server, key: str) -> None:
    """The settings are those of the crawl being started, if they are known: two may be started at once, and differ."""
    command = (sys.executable, "-m", "tests.support.direct", valkey.url, key, way)
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT, cwd=ROOT)
    with valkey.client() as client:
        found = {name: parameters_of(client, f"{key}:{name}")["capacity"] for name in CAPACITIES}
    default = BloomSettings().capacity
    expected = {"alike": [CAPACITIES["first"]] * 2, "together": [default] * 2, "within": list(CAPACITIES.values())}[way]
    assert [*found.values()] == expected
    assert ended.stderr.count(WARNING) == 2 * (way == "together")
    assert "Traceback" not in ended.stderr
