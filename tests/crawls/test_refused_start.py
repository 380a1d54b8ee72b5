"""A crawl refused at its start ends with one line and a non-zero exit code."""

import json
import os
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT, ROOT, CrawlProcess, Job
from devtools.servers import free_port
from scrapy_bloom import BloomFilter
from tests.support import crawling, forked
from tests.support.crawling import BLOOM, OWN_SCHEDULER, REDIS_SCHEDULER
from tests.support.servers import Server
from tests.support.waiting import until

BLOOM_SCHEDULER = "scrapy_bloom.BloomScheduler"

SPIDER = """
import scrapy

class RefusedSpider(scrapy.Spider):
    name = "refused"
    start_urls = ["http://127.0.0.1:1/"]
"""
SCRIPT = """
import json
import sys
from scrapy.crawler import CrawlerProcess
from spider import RefusedSpider

taken = []
process = CrawlerProcess(json.loads(sys.argv[1]))
process.crawl(RefusedSpider).addErrback(taken.append)
process.start()
error = taken[0].value
while error is not None:
    print(type(error).__name__, error)
    error = error.__context__
"""

Settings = dict[str, object]


def prepared(directory: Path, project: str = "") -> dict[str, str]:
    """Write the spider; return an environment that can import it, outside every other project."""
    (directory / "spider.py").write_text(SPIDER)
    path = os.pathsep.join((str(ROOT), str(directory)))
    return {**os.environ, "PYTHONPATH": path, "SCRAPY_PROJECT": project, "SCRAPY_SETTINGS_MODULE": project}


def run(directory: Path, *command: str, project: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python with the spider importable."""
    return subprocess.run(
        [sys.executable, *command],
        check=False,
        cwd=directory,
        env=prepared(directory, project),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def with_runspider(directory: Path, settings: Settings) -> subprocess.CompletedProcess[str]:
    """`scrapy runspider`."""
    return forked.run(("runspider", "spider.py", *options(settings)), directory, prepared(directory))


def in_a_project(directory: Path, settings: Settings) -> subprocess.CompletedProcess[str]:
    """`scrapy crawl`."""
    (directory / "project.py").write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    return forked.run(("crawl", "refused"), directory, prepared(directory, "project"))


def options(settings: Settings) -> list[str]:
    """Return settings as options of the command line."""
    return list(chain.from_iterable(("-s", f"{name}={value}") for name, value in settings.items()))


WAYS = {"runspider": with_runspider, "project": in_a_project}


def stored_settings(server: Server, key: str, scheduler: str) -> Settings:
    """The settings that all these crawls share."""
    return {
        "SCHEDULER": scheduler,
        "DUPEFILTER_CLASS": BLOOM,
        "REDIS_URL": server.url,
        "SCHEDULER_DUPEFILTER_KEY": key,
        "SCHEDULER_QUEUE_KEY": f"{key}:queue",
        "SPIDER_MODULES": "spider",
        "TELNETCONSOLE_ENABLED": False,
    }


def refusal(kind: str, server: Server, key: str) -> tuple[Settings, str]:
    """Store the reason for a refusal; return the settings that trigger it and a part of the error."""
    with server.client() as client:
        if kind == "setting":
            return {"BLOOMFILTER_CAPACITY": 0}, "(BLOOMFILTER_CAPACITY) = "
        if kind == "wrong type":
            client.sadd(key, "a member")
            return {}, f"the key {key!r} holds a SET"
        if kind == "mismatch":
            BloomFilter(client, key, capacity=77)
            return {}, "capacity = 1000000 here, 77 in the stored filter"
        if kind == "refused":
            client.acl_setuser(key, enabled=True, passwords=["+x"], keys="*", commands=["+@all", "-hmget"])
            url = f"redis://{key.replace(':', '%3A')}:x@127.0.0.1:{server.port}"
            return {"REDIS_URL": url}, "Redis refused a command"
    url = f"redis://127.0.0.1:{free_port()}"
    return {"REDIS_URL": url, "BLOOMFILTER_RETRY_TIMEOUT": 0.2}, "(BLOOMFILTER_RETRY_TIMEOUT) = 0.2"


def assert_refused(ended: subprocess.CompletedProcess[str], part: str, *, has_traceback: bool = False) -> None:
    """Assert that the last line, and no other, is ours."""
    assert ended.returncode == crawling.REFUSED_EXIT_CODE
    lines = ended.stderr.splitlines()
    ours = [line for line in lines if line.startswith("scrapy_bloom: ")]
    assert ours == lines[-1:], ended.stderr[-3000:]
    assert part in ours[0]
    # Twisted's reactors print that of an add-on themselves.
    assert has_traceback or "Traceback" not in ended.stderr
    assert not [text for text in ("could not leave", "The fill of the filter") if text in ended.stderr]


# scrapy-redis's Scheduler itself does not start without Redis.
CASES = [
    (REDIS_SCHEDULER, "project", "setting"),
    (REDIS_SCHEDULER, "runspider", "wrong type"),
    (REDIS_SCHEDULER, "project", "refused"),
    (BLOOM_SCHEDULER, "project", "wrong type"),
    (BLOOM_SCHEDULER, "runspider", "mismatch"),
    (BLOOM_SCHEDULER, "runspider", "refused"),
    (BLOOM_SCHEDULER, "project", "away"),
    (OWN_SCHEDULER, "project", "setting"),
    (OWN_SCHEDULER, "runspider", "away"),
]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_last_line(case: tuple[str, str, str], valkey: Server, key: str, tmp_path: Path) -> None:
    """The last line names the refused value, under each scheduler, with and without a project."""
    scheduler, way, kind = case
    settings, part = refusal(kind, valkey, key)
    ended = WAYS[way](tmp_path, {**stored_settings(valkey, key, scheduler), **settings})
    assert_refused(ended, part)
    if scheduler != REDIS_SCHEDULER:  # whose close() expects a dupefilter, which it does not have yet
        assert "AttributeError" not in ended.stderr


CIRCUMSTANCES: dict[str, Settings] = {
    "a log file": {"LOG_FILE": "crawl.log"},
    "no log": {"LOG_ENABLED": False},
    "another reactor": {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"},
}


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
def test_circumstances(circumstance: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """The line is on the screen wherever the log goes, and under every reactor."""
    settings, part = refusal("setting", valkey, key)
    settings |= stored_settings(valkey, key, BLOOM_SCHEDULER) | CIRCUMSTANCES[circumstance]
    ended = with_runspider(tmp_path, settings)
    assert_refused(ended, part, has_traceback="TWISTED_REACTOR" in settings)
    if "LOG_FILE" in settings:
        assert part in (tmp_path / "crawl.log").read_text()


def test_script(valkey: Server, key: str, tmp_path: Path) -> None:
    """A script that runs crawls itself gets the error, prints it, and chooses its exit code."""
    settings, part = refusal("setting", valkey, key)
    settings |= stored_settings(valkey, key, BLOOM_SCHEDULER)
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = run(tmp_path, "script.py", json.dumps(settings))
    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stdout.splitlines() if line.startswith("ConfigError") and part in line]
    assert [line for line in ended.stderr.splitlines() if line.startswith("scrapy_bloom: ")] == []


@pytest.mark.parametrize("module", ["scrapy", "scrapy.cmdline"])
def test_process_of_its_own(module: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A separate Python process, unlike the forks of the other tests, ends with the same line.

    An IDE runs `scrapy.cmdline` as `__main__`.
    """
    settings, part = refusal("setting", valkey, key)
    settings |= stored_settings(valkey, key, BLOOM_SCHEDULER)
    assert_refused(run(tmp_path, "-m", module, "runspider", "spider.py", *options(settings)), part)


def ends_by_ctrl_c(crawl: CrawlProcess) -> bool:
    """Press Ctrl-C again; two at once may count as one, and from the third on they are ignored."""
    crawl.process.send_signal(signal.SIGINT)
    return crawl.has_ended(0.1)


@pytest.mark.parametrize("scheduler", [BLOOM_SCHEDULER, OWN_SCHEDULER])
def test_second_ctrl_c(scheduler: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A start that waits for Redis ends with the second Ctrl-C, and logs it."""
    settings, _ = refusal("away", valkey, key)
    settings = {**stored_settings(valkey, key, scheduler), **settings, "BLOOMFILTER_RETRY_TIMEOUT": 10 * LIMIT}
    (tmp_path / "spider.py").write_text(SPIDER)
    job = Job(("runspider", "spider.py"), {}, settings, {})
    crawl = CrawlProcess("waiting", job, tmp_path, keeps_ledger=False, launch=forked.start)
    try:
        until(lambda: "Redis is unreachable" in crawl.log)
        until(lambda: ends_by_ctrl_c(crawl))
    finally:
        crawl.kill()
    assert crawl.process.returncode == crawling.REFUSED_EXIT_CODE
    assert crawl.log.splitlines()[-1].startswith("scrapy_bloom: Redis is unreachable (ConnectionError:")
    assert "asked twice to stop" in crawl.log
