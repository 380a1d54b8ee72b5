"""The suites of large filters and clusters run in a small size, and their parts count right."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import redisbloom, report
from benchmarks.harness.counters import Place, Share, add_share, counters
from benchmarks.harness.crew import crew
from benchmarks.harness.options import Asked
from benchmarks.harness.pinging import Pings, pinging
from benchmarks.harness.probes import Probe, export, stored_layer
from benchmarks.subjects import bounds
from benchmarks.subjects.additions import OURS
from benchmarks.suites import cluster, field, fill, moving, pauses, scale
from scrapy_bloom.filter.layer import NO_IDENTITY, Identity
from scrapy_bloom.filter.parameters import FilterParameters
from tests.support.servers import Server

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler `cc` on this machine")
SMALL = FilterParameters(2_000, 1e-2, 0)


@contextmanager
def sums(begin: int) -> Iterator[Any]:
    """Make the function of a worker: it keeps its sum between tasks."""
    total = begin

    def add(number: int) -> tuple[int, int]:
        nonlocal total
        total += number
        return os.getpid(), total

    yield add


@contextmanager
def failing(_: object) -> Iterator[Any]:
    """Make a function that ends its process."""
    yield os._exit


def test_the_first_of_a_crew_work_and_the_others_wait() -> None:
    """Each process keeps its state between tasks; a crew does tasks for fewer than all processes."""
    with crew(sums, [10, 20]) as together:
        both, one = together.work([1, 2]), together.work([3])
    (first, eleven), (second, twenty_two) = both.results
    assert len({first, second, os.getpid()}) == 3
    assert (eleven, twenty_two) == (11, 22)
    assert one.results == [(first, 14)]
    assert both.seconds > 0


def test_the_death_of_a_worker_ends_the_measurement() -> None:
    """A process that dies at its task is reported, not waited for."""
    with pytest.raises(RuntimeError, match="died"), crew(failing, [None]) as together:
        together.work([3])


def test_a_share_is_added_once(valkey: Server, key: str) -> None:
    """All items of a share are new the first time, in batches that end with the share."""
    with Place(valkey.url, key, FilterParameters(1_000, 1e-12)).opened() as bloom:
        assert add_share(bloom, Share(0, 100, 325, 100)) == 225
        assert add_share(bloom, Share(0, 100, 326, 100)) == 1
        assert bloom.contains_many(counters(324, 328)) == [True, True, False, False]


@needs_compiler
@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("key", [0, 1, 2**32 - 1, 2**64 - 1, 0x0123456789ABCDEF])
def test_the_program_finds_the_positions_of_the_library(key: int, layer: int, tmp_path: Path) -> None:
    """`probe.c` and the library locate the same bits, with every kind of hash key and size."""
    probe = Probe(tmp_path)
    for capacity in (1, 2_000, 3_000_000, 100_000_000):
        probe.require_same_positions(FilterParameters(capacity, 1e-6).first_layer("k", Identity(1, key), layer, 0.0))


@needs_compiler
def test_the_program_and_the_library_give_the_same_answers(valkey: Server, key: str, tmp_path: Path) -> None:
    """Over the exported bits of a filter, the program counts as many items as the library finds."""
    with valkey.client() as client, Place(valkey.url, key, SMALL).opened() as bloom:
        bloom.add_many(counters(0, 2_000))
        layer = stored_layer(client, key, SMALL)
        shards = export(client, layer, tmp_path)
        probe = Probe(tmp_path)
        assert probe.count(layer, shards, 0, 2_000) == 2_000
        found = sum(bloom.contains_many(counters(2_000, 22_000)))
        assert probe.count(layer, shards, 2_000, 20_000) == found > 0


@needs_compiler
def test_other_positions_are_noticed(tmp_path: Path) -> None:
    """A program with other positions, such as those of another hash key, measures nothing."""
    probe = Probe(tmp_path)
    layer = FilterParameters(1_000).first_layer("k", Identity(1, 5), 0, 0.0)
    other = FilterParameters(1_000).first_layer("k", Identity(1, 6), 0, 0.0)
    located = probe.locate(other, 0, 5_000)
    probe.locate = lambda *_: located  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="different positions"):
        probe.require_same_positions(layer)


def test_pings_belong_to_the_phase_in_which_they_waited() -> None:
    """A ping that was sent before a phase and answered inside it counts there, and one before or after does not."""
    pings = Pings()
    pings.sent, pings.waits = [0.0, 1.0, 2.0, 5.0], [0.5, 0.6, 1.0, 1.0]
    assert pings.between(1.5, 4.0) == [0.6, 1.0]
    times = pauses.Times()
    times.spans = [(pauses.IDLE, 1.5, 4.0), (pauses.FILLS, 0.0, 0.1), (pauses.IDLE, 5.5, 6.0)]
    found = pauses.by_phase(times, pings)
    assert found[pauses.IDLE].pings == [0.6, 1.0, 1.0]
    assert found[pauses.FILLS].pings == [0.5]


def test_pings_are_noted_until_the_end_of_the_block(valkey: Server) -> None:
    """The pinging process runs beside the block, and hands over all its pings."""
    with pinging(valkey.url) as pings, valkey.client() as client:
        client.ping()
    assert len(pings.sent) == len(pings.waits) > 0
    assert all(wait > 0 for wait in pings.waits)


def test_percentiles() -> None:
    """At least the share of the values is not above the percentile."""
    values = [float(number) for number in range(1, 1_001)]
    assert pauses.percentile(values, 0.5) == 501
    assert pauses.percentile(values, 0.999) == 1_000
    assert pauses.percentile([3.0], 0.999) == 3.0


def test_bounds_are_those_of_the_literature() -> None:
    """At 2^-20: 20 bits, and log2(e) more for dynamic filters, and log2(e) times as many for Bloom's."""
    assert bounds.static_bound(2.0**-20) == 20
    assert bounds.dynamic_bound(2.0**-20) == pytest.approx(21.4427)
    assert bounds.bloom_bits(2.0**-20) == pytest.approx(28.8539)
    assert all(each.bits > bounds.static_bound(each.error_rate) for each in bounds.PUBLISHED)


@pytest.mark.parametrize(("measured", "verdict"), [(9.0, "MISSED"), (10.0, "met"), (11.0, "met")])
def test_target_is_met_by_what_is_at_least_that(
    measured: float, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A measurement exactly at the lower bound meets it, and one below misses it."""
    report.least("items", measured, 10)
    assert capsys.readouterr().out.strip() == f"Target: items at least 10. Measured {measured:.0f}: {verdict}."


def test_shards_are_counted_by_master() -> None:
    """Every shard has one of the masters; names that spread give each of them the same number, plain names do not."""
    spread = cluster.shards_by_master("k", NO_IDENTITY._replace(is_spread=True), 60, 3)
    plain = cluster.shards_by_master("k", NO_IDENTITY, 60, 3)
    assert spread == [20, 20, 20]
    assert sum(plain) == 60
    assert plain != spread


def test_ten_billion_urls_take_two_layers() -> None:
    """A filter above the limit of a layer is planned as several equal ones, within its error rate."""
    layers = scale.planned(scale.URLS)
    assert [layer.capacity for layer in layers] == [scale.URLS // 2] * 2
    assert sum(layer.error_rate for layer in layers) <= scale.ERROR_RATE
    assert len(scale.planned(1_000_000)) == 1


def test_a_cluster_is_compared_with_a_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each number of workers has a row for both places, and each target a verdict."""
    monkeypatch.setattr(cluster, "ROUNDS", 1)
    monkeypatch.setattr(cluster, "BATCHES", 2)
    monkeypatch.setattr(cluster, "WORKERS", (1, 2))
    monkeypatch.setattr(cluster, "KEYS", 1)
    monkeypatch.setattr(cluster, "available", lambda: ["valkey"])
    cluster.run(Asked())
    printed = capsys.readouterr().out
    assert printed.count("| one server ") == printed.count("| three masters ") == 2
    assert printed.count("Target: ") == 4


@needs_compiler
def test_a_filling_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All items are added and found, and the lookups give an error rate with its interval."""
    monkeypatch.setattr(fill, "ITEMS", 4_000)
    monkeypatch.setattr(fill, "available", lambda: ["valkey"])
    fill.run(Asked())
    printed = capsys.readouterr().out
    assert "of 40,000 new items called seen, " in printed
    assert "Of the added items 0 are missing." in printed
    assert "| new items called seen while it filled " in printed


def test_pauses_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each phase has pings, and the growth really grows."""
    monkeypatch.setattr(pauses, "REPETITIONS", 1)
    monkeypatch.setattr(pauses, "ITEMS", 20_000_000)
    monkeypatch.setattr(pauses, "SECONDS", 0.05)
    monkeypatch.setattr(pauses, "available", lambda: ["valkey"])
    pauses.run(Asked())
    printed = capsys.readouterr().out
    assert all(f"| {phase} " in printed for phase in pauses.PHASES)
    assert printed.count("Target: ") == 3


def test_a_loss_is_told_by_the_library_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a deletion and after an eviction, the library warns, and keeps its parameters."""
    monkeypatch.setattr(field, "KNOWN", 1_000)
    monkeypatch.setattr(field, "CAPACITY", 50_000)
    monkeypatch.setattr(field, "ROUNDS", 1)
    monkeypatch.setattr(field, "available", lambda: ["valkey"])
    monkeypatch.setattr(redisbloom, "server_options", tuple)
    field.run(Asked())
    printed = capsys.readouterr().out
    assert "RedisBloom is not on this machine" in printed
    rows = [row for row in printed.splitlines() if row.startswith(f"| {OURS}, ")]
    assert len(rows) == 2
    assert all("1,000 of 1,000" in row and "The filter at" in row and "50,000 at 1e-06" in row for row in rows)


def test_ten_billion_urls_are_computed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each row of the plan says whether it was measured or computed."""
    monkeypatch.setattr(scale, "ROUNDS", 1)
    monkeypatch.setattr(scale, "BATCHES", 2)
    monkeypatch.setattr(scale, "SHARDED_ITEMS", 1_000_000)
    monkeypatch.setattr(scale, "available", lambda: ["valkey"])
    scale.run(Asked())
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("| ")][1:]
    assert all("measured" in row or "computed" in row for row in rows)


def test_moves_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A shard of each size is moved back and forth, and is complete afterwards."""
    monkeypatch.setattr(moving, "MOVES", 2)
    monkeypatch.setattr(moving, "available", lambda: ["valkey"])
    moving.run(Asked())
    printed = capsys.readouterr().out
    assert all(f"\n| {size} " in printed for size in moving.MEBIBYTES)
