"""The commands of the first page and of the README print their samples, in a new project with their settings."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT
from devtools.site import Site, serving
from scrapy_bloom.queue.keys import QueueKeys
from tests.support import forked
from tests.support.documentation import IMPOLITE, PLACEHOLDER, blocks, matches
from tests.support.pages import linked
from tests.support.servers import Server, running
from tests.support.waiting import until

# More than two workers lease, so that several wait.
PAGES = 100
MIDDLE = 40
SPIDER = """
from scrapy import Spider


class NewsSpider(Spider):
    name = "news"

    def parse(self, response):
        yield from response.follow_all(css="a")
"""


def test_matches() -> None:
    """Numbers may differ, words may not."""
    assert matches("took 30 new requests of host-7-1a", "took 1,871 new  requests of vm-1-9-ff")
    assert not matches("took 30 new requests", "took 30 requests")


@contextmanager
def two_workers(project: Path, server: Server, site: Site) -> Iterator[None]:
    """Hold two workers in the middle of a crawl during the block; then they complete it."""
    released = threading.Event()
    site.before = lambda _: len(site.fetched) < MIDDLE or released.wait(LIMIT)
    with ExitStack() as stack:
        log = stack.enter_context((project / "log").open("wb"))
        workers = [forked.start(["crawl", "news"], project, os.environ, log, log) for _ in range(2)]
        for worker in workers:
            stack.callback(worker.kill)
        stack.callback(released.set)
        with server.client() as client:
            keys = QueueKeys("news:requests")
            until(lambda: sum(field.startswith(b"@") for field in client.hkeys(keys.crawl)) == 2)
            until(lambda: len(site.fetched) >= MIDDLE and client.zcard(keys.queue) > 1)
        yield
        released.set()
        assert [worker.wait(LIMIT) for worker in workers] == [0, 0]


@pytest.mark.parametrize("page", ["start.md", "../README.md"])
def test_start(page: str, tmp_path: Path) -> None:
    """Doctor, crawl and info print the lines of the page; the README looks at two workers."""

    def run(*arguments: str, directory: Path) -> str:
        done = forked.run(arguments, directory, os.environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    project = tmp_path / "news"
    with running("valkey", "--appendonly", "yes") as server, serving(linked(PAGES)) as site:
        run("startproject", "news", directory=tmp_path)
        (settings,) = blocks(page, "python")
        with (project / "news/settings.py").open("a") as file:
            file.write(settings.replace(PLACEHOLDER, f"redis://localhost:{server.port}"))
            file.write(IMPOLITE)
        (project / "news/spiders/news.py").write_text(f"{SPIDER}    start_urls = ['{site.url}/']\n")
        lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
        commands = [line.split()[1:] for line in lines if line.startswith("scrapy ")]
        for command, sample in zip(commands, blocks(page, "text"), strict=True):
            is_watching = page == "../README.md" and "info" in command
            with two_workers(project, server, site) if is_watching else nullcontext():
                printed = run(*command, directory=project)
            lines = [line for line in sample.splitlines() if line]
            assert [line for line in lines if not matches(line, printed)] == [], printed
