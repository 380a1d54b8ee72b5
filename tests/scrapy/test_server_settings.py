"""The settings of the two servers: which of them applies, and the refusal of others, without a password."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomRFPDupeFilter, ConfigError, FromSentinel
from scrapy_bloom._filter_key import FilterKey
from scrapy_bloom._scrapy.connection import connect, connect_filter
from scrapy_bloom.addon import Addon
from scrapy_bloom.errors import RefusedError, UnavailableError
from scrapy_bloom.queue.inspection import inspect
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.transport.from_url import FromUrl
from tests.support import crawling
from tests.support.clusters import running_cluster
from tests.support.crawling import REDIS_SCHEDULER
from tests.support.in_process import ShopSpider, start
from tests.support.servers import Server, free_port

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of no server
OF_QUEUE, OF_FILTER = "", "BLOOMFILTER_"
every_place = pytest.mark.parametrize("prefix", [OF_QUEUE, OF_FILTER], ids=["queue", "filter"])

# A URL, REDIS_PARAMS, and the beginning of the error; `{}` is the prefix of the settings.
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "Kombu's scheme": (f"sentinel://:{PASSWORD}@a:1/crawl", {}, "{}REDIS_URL = 'sentinel://…': must begin with one of"),
    "no scheme": (f":{PASSWORD}@127.0.0.1:6379/0", {}, "{}REDIS_URL: must begin with one of redis://, rediss://, unix"),
    "no master": (f"redis+sentinel://:{PASSWORD}@a:1", {}, "{}REDIS_URL names no master: end it with"),
    "a database alone": (f"redis+sentinel://:{PASSWORD}@a:1/3", {}, "{}REDIS_URL names no master: end it with"),
    "no database": (f"redis+sentinel://:{PASSWORD}@a:1/crawl/x", {}, "{}REDIS_URL names no master: end it with"),
    "a port": (f"redis+sentinel://:{PASSWORD}@a:{PASSWORD}/crawl", {}, "{}REDIS_URL cannot be read"),
    "a host": (f"redis+sentinel://:{PASSWORD}@a,,/crawl", {}, "{}REDIS_URL cannot be read"),
    "an option of Sentinels": (
        f"rediss+sentinel://a/crawl?sentinel_passwrd={PASSWORD}",
        {},
        "{}REDIS_URL with ?sentinel_passwrd=…: TypeError in scrapy_bloom.transport.from_url.FromUrl; did you mean "
        "'sentinel_password'?",
    ),
    "a value for Sentinels": (
        f"redis+sentinel://a/crawl?sentinel_socket_timeout={PASSWORD}",
        {},
        "{}REDIS_URL with ?sentinel_socket_timeout=…: ValueError in scrapy_bloom.",
    ),
    "an option": (
        f"redis+sentinel://:{PASSWORD}@a/crawl",
        {"passwrd": PASSWORD},
        "{}REDIS_PARAMS = {{'passwrd': …}}: TypeError in scrapy_bloom.transport.from_url.FromUrl; did you mean",
    ),
    "a cluster's database": (f"redis+cluster://:{PASSWORD}@a:1/2", {}, "{}REDIS_URL names a database, but a cluster"),
    "a cluster's option": (
        f"redis+cluster://:{PASSWORD}@127.0.0.1:1?foo=5",
        {},
        "{}REDIS_URL with ?foo=…: TypeError in scrapy_bloom.transport.from_url.FromUrl; ",
    ),
    "no time for a reply": (
        f"redis://:{PASSWORD}@a:1",
        {"socket_timeout": 0},
        "{}REDIS_PARAMS = {{'socket_timeout': 0}}: ValueError in redis.client.Redis; correct its value, or remove it",
    ),
    "no time to connect": (
        f"redis://:{PASSWORD}@a:1?socket_connect_timeout=0",
        {},
        "{}REDIS_URL with ?socket_connect_timeout=…: ValueError in redis.client.Redis; correct its value, or remove it",
    ),
    "an unquoted slash": (f"redis+cluster://:a/{PASSWORD}@a:1", {}, "{}REDIS_URL cannot be read"),
    "two selections": (
        f"redis+cluster://:{PASSWORD}@a:1",
        {"redis_cls": "redis.RedisCluster"},
        "{}REDIS_PARAMS['redis_cls'] = 'redis.RedisCluster': {}REDIS_URL selects the client itself, since it begins "
        "with redis+cluster://; remove redis_cls",
    ),
}


def settings_at(prefix: str, url: str, params: Any = None, **more: Any) -> Settings:
    """Settings whose REDIS_URL and REDIS_PARAMS have this prefix."""
    given = {} if params is None else {f"{prefix}REDIS_PARAMS": params}
    return Settings({f"{prefix}REDIS_URL": url, **given, **more})


def client_of(prefix: str, settings: Settings) -> Any:
    """The client by the settings with this prefix."""
    return connect_filter(settings) if prefix else connect(settings)


@every_place
@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, prefix: str) -> None:
    """Each invalid part is named with its setting, without the password."""
    url, params, begin = REFUSED[what]
    with pytest.raises(ConfigError) as refusal:
        client_of(prefix, settings_at(prefix, url, json.dumps(params)))
    assert str(refusal.value).startswith(begin.replace("{}", prefix).replace("{{", "{").replace("}}", "}"))
    assert PASSWORD not in str(refusal.value)


@pytest.mark.parametrize(
    "params",
    [{"url": f"redis://shop:{PASSWORD}@localhost:none"}, {"url": "redis://localhost", "ssl_password": PASSWORD}],
    ids=["url", "ssl_password"],
)
def test_a_secret_among_the_params(params: dict[str, str]) -> None:
    """An option that contains a password is named without its value."""
    with pytest.raises(ConfigError, match=r"'(url|ssl_password)': …}") as refusal:
        connect(Settings({"REDIS_PARAMS": params}))
    assert PASSWORD not in str(refusal.value)


@every_place
def test_params_that_are_no_dict(prefix: str) -> None:
    """REDIS_PARAMS must be a dict."""
    with pytest.raises(ConfigError, match=f"^{prefix}REDIS_PARAMS must be a dict"):
        client_of(prefix, settings_at(prefix, "redis://localhost", PASSWORD))


def test_params_without_url() -> None:
    """BLOOMFILTER_REDIS_PARAMS alone name no server, and are refused."""
    with pytest.raises(ConfigError, match=r"^BLOOMFILTER_REDIS_PARAMS is set, but BLOOMFILTER_REDIS_URL is not"):
        connect_filter(Settings({"BLOOMFILTER_REDIS_PARAMS": {"password": PASSWORD}}))


@pytest.mark.parametrize("name", ["BLOOMFILTER_REDIS_ULR", "BLOOMFILTER_SERVER"])
def test_misspelt_setting(name: str) -> None:
    """A misspelt setting with a URL is refused without its value."""
    with pytest.raises(ConfigError) as refusal:
        BloomSettings.from_settings(Settings({name: f"redis://:{PASSWORD}@localhost"}))
    assert "BLOOMFILTER_REDIS_URL" in str(refusal.value)
    assert PASSWORD not in str(refusal.value)


def test_queue_server_is_the_default() -> None:
    """Without BLOOMFILTER_REDIS_URL, and with the queue's URL, the filter has the queue's connection."""
    params = {"password": PASSWORD, "db": 3}
    for url in ("", "redis://localhost:1"):
        settings = settings_at(OF_QUEUE, "redis://localhost:1", params, BLOOMFILTER_REDIS_URL=url)
        assert connect_filter(settings).get_connection_kwargs()["password"] == PASSWORD
        assert FilterKey.for_workers(settings, "shop").slot_key


def test_other_server_gets_nothing_of_the_queue() -> None:
    """The filter's server gets no password and no option of the queue's, but the short timeouts."""
    settings = settings_at(OF_QUEUE, "redis://localhost:1", {"password": PASSWORD}, REDIS_DB=3, REDIS_ENCODING="utf-16")
    settings.set("BLOOMFILTER_REDIS_URL", "redis://localhost:2")
    options = connect_filter(settings).get_connection_kwargs()
    assert (options["port"], options.get("password"), options.get("db") or 0) == (2, None, 0)
    assert options["encoding"] == "utf-8"
    assert options["socket_timeout"] == options["socket_connect_timeout"] == 5
    # On another server there is no slot to share.
    assert FilterKey.for_workers(settings, "shop").slot_key is None


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


def test_class_of_the_user() -> None:
    """A `redis_cls` of the user's own gets every URL unchanged; FromSentinel works as before."""
    seen = []

    class Own:
        @classmethod
        def from_url(cls, url: str, **_: Any) -> Any:
            seen.append(url)
            return FromSentinel.from_url("redis://localhost")

    for url in ("redis+cluster://localhost", "own://localhost/x"):
        connect(settings_at(OF_QUEUE, url, {"redis_cls": Own}))
    assert set(seen) == {"redis+cluster://localhost", "own://localhost/x"}


@every_place
def test_node_of_a_cluster(prefix: str, key: str) -> None:
    """A plain client of a cluster's node is refused, with advice for the URL."""
    refusals = []
    with running_cluster(2) as nodes:
        for node in nodes:
            settings = settings_at(prefix, node.url, SCHEDULER_DUPEFILTER_KEY=key)
            try:
                BloomRFPDupeFilter.from_settings(settings)
            except RefusedError as error:
                refusals.append(str(error))
    # One of them may have the slot of the filter's hash.
    assert refusals
    advice = f"the server is a node of a cluster: begin {prefix}REDIS_URL with redis+cluster://"
    assert [text for text in refusals if advice not in text] == []


def test_unreachable_server_is_named(valkey: Server, key: str) -> None:
    """The error names the setting of the filter's server."""
    more = {"SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_RETRY_TIMEOUT": 0, "REDIS_URL": valkey.url}
    with pytest.raises(UnavailableError, match="check BLOOMFILTER_REDIS_URL, restart Redis"):
        BloomRFPDupeFilter.from_settings(settings_at(OF_FILTER, f"redis://127.0.0.1:{free_port()}", **more))


def test_queue_is_marked_on_its_server(servers: Callable[[str], Server], key: str) -> None:
    """Under scrapy-redis's Scheduler, which pops requests, the queue's server has the mark of a shared queue."""
    kept, settings = servers("redis"), {"REDIS_URL": servers("valkey").url, "SCHEDULER_DUPEFILTER_KEY": key}
    settings |= {"BLOOMFILTER_REDIS_URL": kept.url, "SCHEDULER": REDIS_SCHEDULER, "SCHEDULER_QUEUE_KEY": f"{key}:queue"}
    crawler = start({"DUPEFILTER_CLASS": crawling.BLOOM, **settings})
    scheduler = Scheduler.from_crawler(crawler)
    scheduler.open(crawler.spider)
    with scheduler.server as of_queue, kept.client() as of_filter:
        assert inspect(of_queue, f"{key}:queue").is_shared
        assert not inspect(of_filter, f"{key}:queue").is_shared
        scheduler.close("shutdown")
        crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="shutdown")


def test_scheduler_of_scrapy_redis() -> None:
    """The add-on refuses scrapy-redis's Scheduler over a cluster or Sentinels, which it cannot reach."""
    settings = settings_at(OF_QUEUE, "redis+sentinel://localhost/crawl", SCHEDULER=REDIS_SCHEDULER)
    crawler = Crawler(ShopSpider, settings)
    with pytest.raises(ConfigError, match="scrapy-redis cannot connect to the cluster or the Sentinels in REDIS_URL"):
        Addon.from_crawler(crawler).update_settings(settings)
