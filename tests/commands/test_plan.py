"""`scrapy bloom plan`: its figures are those of the filter to be created."""

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli.plan import make_plan
from scrapy_bloom.filter.parameters import FilterParameters
from tests.support import command


def planned(capsys: pytest.CaptureFixture[str], *arguments: str, **settings: object) -> dict[str, Any]:
    assert command.call("plan", *arguments, "--json", **settings) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("expansion", [0, 2])
def test_size(client: redis.Redis, key: str, expansion: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The planned size is the real size."""
    plan = planned(capsys, "--capacity", "3e5", "--error-rate", "1e-4", "--expansion", str(expansion))
    info = BloomFilter(client, key, capacity=300_000, error_rate=1e-4, expansion=expansion).info()
    names = ("capacity", "error_rate", "memory_bytes", "bits", "hashes", "shards", "layers")
    assert {name: plan[name] for name in names} == {name: getattr(info, name) for name in names}
    assert plan["set_memory_bytes"] == 80 * 300_000


def test_words(capsys: pytest.CaptureFixture[str]) -> None:
    """The expected number of missed pages is far below the error rate times the capacity; the text says why."""
    for options, missed in (
        ([], "about 0.06 pages of 1,000,000 expected, since a filter errs less until it is full"),
        (["--ttl", "1000"], "about 1.00 pages of 1,000,000 if all layers are always full"),
    ):
        assert command.call("plan", *options) == 0
        printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line)
        assert printed["error"] == "rate  1e-6 of the new requests are mistaken for duplicates when the filter is full"
        assert printed["missed"] == missed


def test_growth(client: redis.Redis, key: str) -> None:
    """The planned growth is that of a filter with as many items; with a TTL all layers that live at once count."""
    plan = make_plan(FilterParameters(500, 1e-3))
    bloom = BloomFilter(client, key, capacity=500, error_rate=1e-3)
    bloom.add_many([f"{number}" for number in range(5000)])
    info, told = bloom.info(), plan["growth"][-1]
    assert (told["requests"], told["layers"], told["memory_bytes"]) == (5000, info.layers, info.memory_bytes)
    with_ttl = make_plan(FilterParameters(500, 1e-3, ttl=1000))
    assert with_ttl["layers"] == 7
    assert with_ttl["memory_bytes"] > plan["memory_bytes"]


def test_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    """The filters of all partitions are summed, as they will be created; a request is in one of them."""
    one = planned(capsys, "--capacity", "3e5")
    plan = planned(capsys, "--capacity", "3e5", BLOOMFILTER_PARTITIONS=4)
    share = make_plan(FilterParameters(300_000).of_partition(4))
    for name in ("memory_bytes", "bits", "shards"):
        assert plan[name] == 4 * share[name]
    assert (one["partitions"], plan["partitions"], plan["capacity"]) == (1, 4, 300_000)
    assert [each["requests"] for each in plan["growth"]] == [each["requests"] for each in one["growth"]]
    assert all(
        1 < big["memory_bytes"] / small["memory_bytes"] < 1.1
        for big, small in zip(plan["growth"], one["growth"], strict=True)
    )
    assert 0.5 < plan["expected_false_positives"] / one["expected_false_positives"] < 1
    assert command.call("plan", BLOOMFILTER_PARTITIONS=4) == 0
    printed = capsys.readouterr().out
    assert "in each of 4, as room on its node, besides its requests" in printed


def test_missed_pages_without_growth(capsys: pytest.CaptureFixture[str]) -> None:
    """A filter without growth exceeds its error rate beyond its capacity, and the plan reports it."""
    growth = planned(capsys, "--capacity", "1000", "--expansion", "0")["growth"]
    assert [each["layers"] for each in growth] == [1, 1, 1]
    assert growth[-1]["error_rate"] > 0.5


def test_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid value is refused, with the name of the option and of the setting."""
    assert command.call("plan", "--error-rate", "1") == 2
    assert "scrapy bloom: error_rate (BLOOMFILTER_ERROR_RATE) = '1': must" in capsys.readouterr().err


def test_in_a_project(tmp_path: Path) -> None:
    """In a project its settings apply, and options override them."""
    project = command.make_project(tmp_path, BLOOMFILTER_CAPACITY=5000, BLOOMFILTER_ERROR_RATE=1e-4)
    assert command.report("plan", cwd=project)["capacity"] == 5000
    told = command.report("plan", "shop", "--error-rate", "1e-2", cwd=project)
    assert (told["capacity"], told["error_rate"]) == (5000, 0.01)
