"""The settings of the connection, and the refusal of invalid ones, without a password."""

import json
from typing import Any

import pytest
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from scrapy_bloom import BloomRFPDupeFilter, ConfigError
from scrapy_bloom.addon import Addon
from scrapy_bloom.errors import RefusedError
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.transport.connect import FromUrl, connect
from tests.support.clusters import running_cluster
from tests.support.crawling import REDIS_SCHEDULER
from tests.support.in_process import ShopSpider

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of no server
# The beginning of the error, a URL, and REDIS_PARAMS.
REFUSED: list[tuple[str, str, Any]] = [
    ("REDIS_URL = 'sentinel://…': must begin with one of", f"sentinel://:{PASSWORD}@a:1/crawl", {}),
    ("REDIS_URL: must begin with one of redis://, rediss://, unix", f":{PASSWORD}@127.0.0.1:6379/0", {}),
    ("REDIS_URL names no master: end it with", f"redis+sentinel://:{PASSWORD}@a:1", {}),
    ("REDIS_URL names no master: end it with", f"redis+sentinel://:{PASSWORD}@a:1/3", {}),
    ("REDIS_URL names no master: end it with", f"redis+sentinel://:{PASSWORD}@a:1/crawl/x", {}),
    ("REDIS_URL cannot be read", f"redis+sentinel://:{PASSWORD}@a:{PASSWORD}/crawl", {}),
    ("REDIS_URL cannot be read", f"redis+sentinel://:{PASSWORD}@a,,/crawl", {}),
    ("REDIS_URL cannot be read", f"redis+cluster://:a/{PASSWORD}@a:1", {}),
    ("REDIS_URL cannot be read", "", {"url": f"redis://shop:{PASSWORD}@localhost:none"}),
    ("REDIS_URL names a database, but a cluster", f"redis+cluster://:{PASSWORD}@a:1/2", {}),
    (
        "REDIS_URL with ?sentinel_passwrd=…: TypeError in scrapy_bloom.transport.connect.FromUrl; correct it, or",
        f"rediss+sentinel://a/crawl?sentinel_passwrd={PASSWORD}",
        {},
    ),
    (
        "REDIS_URL with ?sentinel_socket_timeout=…: ValueError in scrapy_bloom.",
        f"redis+sentinel://a/crawl?sentinel_socket_timeout={PASSWORD}",
        {},
    ),
    (
        "REDIS_PARAMS['passwrd']: TypeError in scrapy_bloom.transport.connect.FromUrl; correct it, or remove it",
        f"redis+sentinel://:{PASSWORD}@a/crawl",
        {"passwrd": PASSWORD},
    ),
    (
        "REDIS_URL with ?foo=…: TypeError in scrapy_bloom.transport.connect.FromUrl; ",
        f"redis+cluster://:{PASSWORD}@127.0.0.1:1?foo=5",
        {},
    ),
    (
        "REDIS_PARAMS['socket_timeout']: ValueError in redis.client.Redis; correct it, or remove it",
        f"redis://:{PASSWORD}@a:1",
        {"socket_timeout": 0},
    ),
    (
        "REDIS_URL with ?socket_connect_timeout=…: ValueError in redis.client.Redis; correct it, or remove it",
        f"redis://:{PASSWORD}@a:1?socket_connect_timeout=0",
        {},
    ),
    (
        "REDIS_PARAMS['ssl']: TypeError in redis.client.Redis; remove it, and begin REDIS_URL with rediss",
        f"redis://:{PASSWORD}@a:1",
        {"ssl": True},
    ),
    (
        "REDIS_URL or REDIS_PARAMS['max_connections'] or REDIS_PARAMS['db']: ValueError in redis.client.Redis; correct",
        f"redis://:{PASSWORD}@a:1",
        {"max_connections": PASSWORD, "db": 3},
    ),
    (
        "REDIS_PARAMS['redis_cls'] = 'redis.RedisCluster': REDIS_URL selects the client itself, since it begins "
        "with redis+cluster://; remove redis_cls",
        f"redis+cluster://:{PASSWORD}@a:1",
        {"redis_cls": "redis.RedisCluster"},
    ),
    ("REDIS_PARAMS['ssl_password']: TypeError", "", {"url": "redis://localhost", "ssl_password": PASSWORD}),
    ("REDIS_PARAMS must be a dict", "", PASSWORD),
]


@pytest.mark.parametrize(("begin", "url", "params"), REFUSED)
def test_refused(begin: str, url: str, params: Any) -> None:
    """Each invalid part is named with its setting, without the password."""
    settings = {"REDIS_URL": url, "REDIS_PARAMS": json.dumps(params)} if url else {"REDIS_PARAMS": params}
    with pytest.raises(ConfigError) as refusal:
        connect(Settings(settings))
    assert str(refusal.value).startswith(begin)
    assert PASSWORD not in str(refusal.value)


def test_a_port_that_is_none() -> None:
    """The older settings of scrapy-redis are named, too."""
    with pytest.raises(ConfigError, match=r"^REDIS_HOST or REDIS_PORT: ValueError in redis\.client\.Redis; correct it"):
        connect(Settings({"REDIS_HOST": "localhost", "REDIS_PORT": "six"}))


def test_misspelt_setting() -> None:
    """A misspelt setting with a URL is refused without its value."""
    with pytest.raises(ConfigError, match=r"^BLOOMFILTER_SERVER = …: there is no such setting") as refusal:
        BloomSettings.from_settings(Settings({"BLOOMFILTER_SERVER": f"redis://:{PASSWORD}@localhost"}))
    assert PASSWORD not in str(refusal.value)


def test_timeouts() -> None:
    """They are short by default; those in REDIS_PARAMS, and in the URL, are kept."""
    for url, params, expected in (
        ("redis://localhost", {}, (5, 5)),
        ("redis://localhost", {"socket_timeout": 9}, (9, 5)),
        ("redis://localhost?socket_connect_timeout=7", {"socket_timeout": None}, (None, 7)),
        ("redis://localhost?socket_timeout=7", {"socket_timeout": 9, "socket_connect_timeout": 8}, (7, 8)),
    ):
        options = connect(Settings({"REDIS_URL": url, "REDIS_PARAMS": params})).get_connection_kwargs()
        assert (options["socket_timeout"], options["socket_connect_timeout"]) == expected


def test_sentinels_have_options_of_their_own() -> None:
    """The URL's options are the master's, those with `sentinel_` the Sentinels', and TLS is for both."""
    url = "rediss+sentinel://shop:p%40ss@one,[::1]:7001,two:7000/crawl/5?ssl_ca_certs=/ca&sentinel_username=watch"
    client = FromUrl.from_url(f"{url}&sentinel_password=x%2Fy", ssl_certfile="/mine", sentinel_kwargs={"db": 1})
    pool = client.connection_pool
    names = ("username", "password", "db", "ssl_ca_certs", "ssl_certfile")
    assert [pool.connection_kwargs[name] for name in names] == ["shop", "p@ss", 5, "/ca", "/mine"]
    assert pool.service_name == "crawl"
    asked = [each.get_connection_kwargs() for each in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("one", 26379), ("::1", 7001), ("two", 7000)]
    for each in asked:
        assert [each[name] for name in names] == ["watch", "x/y", 1, "/ca", "/mine"]
    plain = FromUrl.from_url(f"{url}&sentinel_ssl=false").connection_pool.sentinel_manager.sentinels[0]
    assert "ssl_ca_certs" not in plain.get_connection_kwargs()


def test_node_of_a_cluster(key: str) -> None:
    """A plain client of a cluster's node is refused, with advice for the URL."""
    settings = {"SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_CAPACITY": 1000}
    advice = r"the server is a node of a cluster: begin REDIS_URL with redis\+cluster://"
    with running_cluster(2) as nodes:
        of_nodes = [Settings({"REDIS_URL": node.url, **settings}) for node in nodes]
        # One of the nodes has the slot of the filter.
        with pytest.raises(RefusedError, match=advice):
            list(map(BloomRFPDupeFilter.from_settings, of_nodes))


def test_scheduler_of_scrapy_redis() -> None:
    """The add-on refuses scrapy-redis's Scheduler over a cluster or Sentinels, which it cannot reach."""
    settings = Settings({"REDIS_URL": "redis+sentinel://localhost/crawl", "SCHEDULER": REDIS_SCHEDULER})
    crawler = Crawler(ShopSpider, settings)
    with pytest.raises(ConfigError, match="scrapy-redis cannot connect to the cluster or the Sentinels in REDIS_URL"):
        Addon.from_crawler(crawler).update_settings(settings)
