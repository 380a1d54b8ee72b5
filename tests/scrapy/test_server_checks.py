"""Checks of server settings: a warning for each risk, and none otherwise."""

import logging
import re
from collections.abc import Iterator

import pytest
import redis
from scrapy.settings import Settings

from scrapy_bloom import BloomRFPDupeFilter
from scrapy_bloom.monitoring.reporter import warn_about_memory_policy
from tests.support.servers import KINDS, Server, running

LIMIT = 64 * 1024 * 1024
EVICTING = ["allkeys-lru", "allkeys-lfu", "allkeys-random"]
KEEPING = ["noeviction", "volatile-lru", "volatile-ttl"]


@pytest.fixture(scope="module", params=KINDS)
def limited(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server whose memory is limited."""
    with running(request.param, "--maxmemory", str(LIMIT)) as server:
        yield server


def advised(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings, with numbers as plain digits."""
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [re.sub(r"(?<=\d)[,_](?=\d)", "", message) for message in caplog.messages]


@pytest.mark.parametrize("excess", [1, 0], ids=["larger", "as large"])
def test_filter_and_maxmemory(limited: Server, key: str, excess: int, caplog: pytest.LogCaptureFixture) -> None:
    """A filter larger than `maxmemory` is warned about once, with both sizes; a smaller one is not."""
    with limited.client() as client:
        warn_about_memory_policy(client, key, LIMIT + excess)
    parts = (repr(key), "maxmemory", str(LIMIT), str(LIMIT + 1))
    assert [[part in warning for part in parts] for warning in advised(caplog)] == [[True] * 4] * excess


def test_no_limit(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server without a memory limit evicts no keys under any policy."""
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        warn_about_memory_policy(client, key, 1 << 50)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert advised(caplog) == []


@pytest.mark.parametrize("policy", [*EVICTING, *KEEPING])
@pytest.mark.parametrize("ttl", [None, 3600])
def test_policy(limited: Server, key: str, policy: str, ttl: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """A crawl's start warns of a policy that may evict any key, by name.

    A filter with a TTL can be evicted under every policy but noeviction, the only one advised.
    """
    settings = {"REDIS_URL": limited.url, "SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_TTL": ttl}
    with limited.client() as client:
        client.config_set("maxmemory-policy", policy)
        BloomRFPDupeFilter.from_settings(Settings({**settings, "BLOOMFILTER_CAPACITY": 1000}))
    warnings = advised(caplog)
    assert len(warnings) == (policy in EVICTING if ttl is None else policy != "noeviction")
    assert all(policy in each and repr(key) in each for each in warnings)
    assert ttl is None or all("set noeviction:" in each and "volatile-*" not in each for each in warnings)


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 2}, {"protocol": 3}], ids=str)
def test_every_kind_of_reply(
    limited: Server, key: str, options: dict[str, bool | int], caplog: pytest.LogCaptureFixture
) -> None:
    """The warnings are the same for every type of reply."""
    with limited.client(**options) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        warn_about_memory_policy(client, key, LIMIT + 1)
    assert len(advised(caplog)) == 2


def test_server_that_denies_info(limited: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that denies INFO, as managed ones do, causes neither warning nor error."""
    with limited.client() as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
        admin.acl_setuser(key, enabled=True, passwords=["+x"], keys="*", commands=["+@all", "-info", "-config"])
    with limited.client(username=key, password="x") as user:  # noqa: S106  # of this test's own user
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.info("memory")
        warn_about_memory_policy(user, key, LIMIT + 1)
    assert advised(caplog) == []
