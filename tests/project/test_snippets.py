"""The first pages, the tutorial and blocks of Python work as described, on a server and a site of this test's own."""

import ast
import doctest
import json
import os
import re
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.crawl_process import LIMIT, Process
from devtools.site import Site, serving
from scrapy_bloom.queue.inspection import inspect
from tests.commands.test_info import register
from tests.support import forked
from tests.support.documentation import DOCS, EVERY_PAGE, IMPOLITE, PLACEHOLDER, blocks, matches, text_of
from tests.support.pages import linked
from tests.support.servers import Server, running
from tests.support.waiting import until

SITE = "https://quotes.toscrape.com/"
PAGES = 100
SPIDER = """
from scrapy import Spider


class NewsSpider(Spider):
    name = "news"

    def parse(self, response):
        yield from response.follow_all(css="a")
"""


@pytest.fixture
def own() -> Iterator[Server]:
    """A server with the documentation's keys alone."""
    with running("valkey", "--appendonly", "yes") as server:
        yield server


@pytest.fixture
def stored(own: Server) -> Iterator[redis.Redis]:
    """Yield a client of that server."""
    with own.client(decode_responses=True) as client:
        yield client


@pytest.fixture
def site() -> Iterator[Site]:
    """The site that is crawled instead of the pages' own."""
    with serving(linked(PAGES)) as site:
        yield site


class Project:
    """A new project, in which the commands of a page are run."""

    def __init__(self, directory: Path, name: str, server: Server) -> None:
        self._server = server
        self.directory = directory
        assert self.run(f"scrapy startproject {name}") == 0
        self.directory /= name
        self.append(f"{name}/settings.py", IMPOLITE)

    @property
    def log(self) -> str:
        """The output of all commands so far."""
        return (self.directory / "log").read_text()

    def append(self, file: str, code: str) -> None:
        """Append the code of a page to a file."""
        with (self.directory / file).open("a") as opened:
            opened.write(code.replace(PLACEHOLDER, f"redis://localhost:{self._server.port}"))

    def start(self, command: str) -> Process:
        """Start a command."""
        program, *arguments = shlex.split(command)
        assert program == "scrapy"
        environment = {name: value for name, value in os.environ.items() if name != "SCRAPY_PROJECT"}
        with (self.directory / "log").open("ab") as log:
            return forked.start(arguments, self.directory, environment, log, log)

    def run(self, command: str) -> int:
        """Run a command to its end."""
        process = self.start(command)
        try:
            return process.wait(LIMIT)
        finally:
            process.kill()


@pytest.mark.parametrize("page", ["start.md", "../README.md"])
def test_start(page: str, tmp_path: Path, own: Server, stored: redis.Redis, site: Site) -> None:
    """Doctor, crawl and info print the lines of the page; the README looks at two workers in the middle of a crawl."""
    project, released, middle = Project(tmp_path, "news", own), threading.Event(), PAGES // 2
    (settings,) = blocks(page, "python")
    project.append("news/settings.py", settings)
    project.append("news/spiders/news.py", f"{SPIDER}    start_urls = ['{site.url}/']\n")
    commands = [line for block in blocks(page, "bash") for line in block.splitlines() if line.startswith("scrapy ")]
    with ExitStack() as stack:
        for command, sample in zip(commands, blocks(page, "text"), strict=True):
            if page == "../README.md" and " info " in command:
                site.before = lambda _: len(site.fetched) < middle or released.wait(LIMIT)
                for worker in (project.start("scrapy crawl news") for _ in range(2)):
                    stack.callback(worker.wait, LIMIT)
                stack.callback(released.set)
                until(lambda: stored.exists("news:requests") and len(site.fetched) >= middle)
                until(lambda: len(inspect(stored, "news:requests").workers) == 2)
            assert project.run(command) == 0, project.log
            lines = [line for line in sample.splitlines() if line]
            assert [line for line in lines if not matches(line, project.log)] == [], project.log


def tutorial(directory: Path, server: Server) -> Project:
    """Return the project of the tutorial, with its files."""
    project = Project(directory, "tutorial", server)
    files = re.findall(
        r"`(tutorial/\S+\.py)`:\n\n```python\n(.*?)^```$", text_of("tutorial.md"), re.MULTILINE | re.DOTALL
    )
    assert len(files) == len(blocks("tutorial.md", "python"))
    for file, code in files:
        project.append(file, code)
    return project


def crawl_of(site: Site, output: str) -> str:
    """Return the tutorial's only crawl with this output, of another site."""
    (command,) = re.findall(rf"^scrapy crawl .* -O {output}$", text_of("tutorial.md"), re.MULTILINE)
    assert SITE in command
    return str(command.replace(SITE, f"{site.url}/"))


def pages_in(project: Project, site: Site, *outputs: str) -> list[str]:
    """Return the paths of the pages in outputs, in order."""
    items = [line for output in outputs for line in (project.directory / output).read_text().splitlines()]
    urls = [json.loads(line.rstrip(","))["url"] for line in items]
    return sorted(url.removeprefix(site.url) for url in urls)


@pytest.mark.long
def test_tutorial_shares_a_crawl(tmp_path: Path, own: Server, stored: redis.Redis, site: Site) -> None:
    """Two workers fetch every page once between them, and leave no keys."""
    # The first page comes when both workers run: one alone would finish this small site.
    site.on["/"] = lambda _: until(lambda: len(inspect(stored, "pages:requests").workers) == 2)
    project, outputs = tutorial(tmp_path, own), ("one.jsonl", "two.jsonl")
    workers = [project.start(crawl_of(site, output)) for output in outputs]
    assert [worker.wait(LIMIT) for worker in workers] == [0, 0], project.log
    assert pages_in(project, site, *outputs) == sorted(site.links)
    (sample,) = blocks("tutorial.md", "text")
    assert [line for line in sample.splitlines() if not matches(line, project.log)] == [], project.log
    assert stored.keys() == []


def test_tutorial_stops_and_resumes(tmp_path: Path, own: Server, stored: redis.Redis, site: Site) -> None:
    """A stopped crawl resumes, and another one starts afresh."""
    project = tutorial(tmp_path, own)
    worker = project.start(crawl_of(site, "three.jsonl"))
    site.on["/page/5"] = lambda _: worker.send_signal(signal.SIGINT)
    assert worker.wait(LIMIT) == 0, project.log
    site.on.clear()
    assert 0 < len(pages_in(project, site, "three.jsonl")) < PAGES
    assert stored.exists("pages:requests", "pages:dupefilter") == 2
    assert project.run(crawl_of(site, "four.jsonl")) == 0, project.log
    assert pages_in(project, site, "three.jsonl", "four.jsonl") == sorted(site.links)
    assert project.run(crawl_of(site, "five.jsonl")) == 0, project.log
    assert pages_in(project, site, "five.jsonl") == sorted(site.links)
    assert stored.keys() == []


def test_api(own: Server) -> None:
    """The filter's answers are those in the comments on the page of the Python API."""
    (block,) = blocks("api.md", "python")
    block = block.replace(PLACEHOLDER, own.url)
    names: dict[str, Any] = {}
    lines = block.splitlines()
    for statement in ast.parse(block).body:
        code = ast.unparse(statement)
        promised = re.search(r"  # (True|False|\[.*?\])", lines[(statement.end_lineno or 0) - 1])
        if promised is None:
            exec(code, names)  # noqa: S102  # our own documentation
        else:
            assert eval(code, names) == ast.literal_eval(promised[1]), code  # noqa: S307  # as above


def test_probe(own: Server, stored: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The liveness probe fails for a silent worker of this host alone, and not while Redis is unreachable."""
    (probe,) = (block for block in blocks("deploy.md", "python") if "alive.py" in block)
    probe = probe.replace('"news"', '"shared"')
    monkeypatch.chdir(DOCS.parent / "example_project")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)

    def fails(url: str) -> bool:
        monkeypatch.setenv("REDIS_URL", url)
        try:
            exec(probe, {})  # noqa: S102  # our own documentation
        except SystemExit as end:
            return bool(end.code)
        return False

    for name in ("another-host", socket.gethostname()):
        register(stored, "shared", f"{name}-7-1a2b3c4d", holds=0, contact=1_700_000_000)
        assert fails(own.url) == (name == socket.gethostname())
    assert not fails("redis://localhost:1")


@pytest.mark.parametrize("page", [page for page in EVERY_PAGE if "```pycon" in text_of(page)])
def test_sessions(page: str, own: Server, stored: redis.Redis) -> None:
    """Every session of Python prints its output, and leaves no keys."""
    session = "".join(blocks(page, "pycon")).replace(PLACEHOLDER, own.url)
    report: list[str] = []
    examples = doctest.DocTestParser().get_doctest(session, {}, page, None, None)
    assert not doctest.DocTestRunner().run(examples, out=report.append).failed, "".join(report)
    assert stored.keys() == []
