"""The README, the tutorial and blocks of Python work as described, on a server and a site of this test's own."""

import ast
import doctest
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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

PAGES = 200
# Settings of a project of scrapy-redis.
STOCK = "SCHEDULER = 'scrapy_redis.scheduler.Scheduler'\n"
PLACED = f"REDIS_URL = '{PLACEHOLDER}'\n"
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


def printed(sample: str, log: str) -> bool:
    """Return whether each line of a page's sample was printed."""
    return all(matches(line, log) for line in sample.splitlines() if line)


def test_readme(tmp_path: Path, own: Server, stored: redis.Redis, site: Site) -> None:
    """The filter alone serves a project of scrapy-redis. Then doctor, two crawls and info do what the README says."""
    (alone, settings), (opened, crawling) = (blocks("../README.md", language) for language in ("python", "text"))
    (commands,) = (block for block in blocks("../README.md", "bash") if "scrapy bloom" in block)
    doctor, crawl, info = commands.splitlines()
    by_filter, project = (Project(tmp_path, name, own) for name in ("former", "news"))
    for each, chosen in ((by_filter, alone + STOCK + PLACED), (project, settings)):
        each.append(f"{each.directory.name}/settings.py", chosen)
        each.append(f"{each.directory.name}/spiders/news.py", f"{SPIDER}    start_urls = ['{site.url}/']\n")
    assert by_filter.run(crawl) == 0, by_filter.log
    assert printed(opened, by_filter.log), by_filter.log
    # Scrapy's start request is not deduplicated.
    assert Counter(site.paths) == {**dict.fromkeys(site.links, 1), "/": 2}
    assert project.run(doctor) == 0, project.log
    site.fetched.clear()
    with crawling_by_two(project, site, stored, crawl):
        assert project.run(info) == 0, project.log
    assert printed(crawling, project.log), project.log


@contextmanager
def crawling_by_two(project: Project, site: Site, stored: redis.Redis, crawl: str) -> Iterator[dict[str, Process]]:
    """Yield two workers by their names, each with requests, in the middle of a crawl, and wait for them later."""
    released = threading.Event()
    site.before = lambda _: len(site.fetched) < PAGES // 2 or released.wait(LIMIT)
    queue = f"{crawl.rsplit(maxsplit=1)[-1]}:requests"
    with ExitStack() as stack:
        workers = [project.start(crawl) for _ in range(2)]
        for worker in workers:
            stack.callback(worker.wait, LIMIT)
        stack.callback(released.set)
        until(lambda: stored.exists(queue) and len(site.fetched) >= PAGES // 2)
        until(lambda: [each.holds > 1 for each in inspect(stored, queue).workers] == [True, True])
        names = [each.name for each in inspect(stored, queue).workers]
        yield {name: worker for name in names for worker in workers if f"-{worker.pid}-" in name}


TUTORIAL = "start.md"


def tutorial(directory: Path, server: Server, site: Site) -> Project:
    """Return the project of the tutorial, with its files, on a server as it is by default."""
    with server.client() as client:
        client.config_set("appendonly", "no")
        client.config_set("save", "3600 1")
    project = Project(directory, "tutorial", server)
    found = re.findall(
        r"`(tutorial/\S+\.py)`[^\n]*\n?[^\n]*:\n\n```python\n(.*?)^```$", text_of(TUTORIAL), re.MULTILINE | re.DOTALL
    )
    assert [code for _, code in found] == blocks(TUTORIAL, "python")
    for file, code in found:
        project.append(file, code.replace("http://localhost:8000", site.url))
    # The dead worker is found sooner than in the exercise.
    project.append("tutorial/settings.py", f"{IMPOLITE}BLOOMFILTER_LEASE = 2\n")
    return project


def answers(server: Server) -> list[str]:
    """Return the outputs of the tutorial's lines with LRANGE; redis-cli need not be on this machine."""
    outputs = []
    for line in (line for block in blocks(TUTORIAL, "bash") for line in block.splitlines() if "lrange" in line):
        ask, _, count = line.partition(" | ")
        with server.client(decode_responses=True) as client:
            items = "".join(f"{item}\n" for item in client.execute_command(*ask.split()[1:]))
        options: dict[str, Any] = {"capture_output": True, "text": True}
        done = subprocess.run(count, shell=True, check=True, input=items, **options)  # noqa: S602  # our own documentation
        outputs.append(done.stdout.strip())
    return outputs


def test_tutorial(tmp_path: Path, own: Server, stored: redis.Redis, site: Site) -> None:
    """No page is missing after a worker is killed, nor after a stop: the commands of the page say so."""
    project = tutorial(tmp_path, own, site)
    commands = [line for block in blocks(TUTORIAL, "bash") for line in block.splitlines()]
    doctor, crawl, info, over, resume = (
        line for line in commands[commands.index("cd tutorial") :] if "scrapy " in line
    )
    (kill,), every = (line for line in commands if line.startswith("kill ")), str(PAGES)
    of_doctor, of_info, of_death = blocks(TUTORIAL, "text")
    assert project.run(doctor) == 0, project.log
    with crawling_by_two(project, site, stored, crawl) as workers:
        assert project.run(info) == 0, project.log
        (killed, process), (_, other) = workers.items()
        number = killed.split("-")[-2]
        assert re.search(rf"-{kill.split()[-1]}-", of_info)
        subprocess.run([*kill.split()[:-1], number], check=True)
        assert process.wait(LIMIT) != 0
    assert other.wait(LIMIT) == 0, project.log
    for sample in (of_doctor, of_info, of_death):
        assert printed(sample, project.log), project.log
    assert killed in project.log
    assert answers(own)[0] == every
    site.fetched.clear()
    assert project.run(crawl) == 0, project.log
    assert site.paths == []
    (deleted,) = (line.split()[-1] for line in commands if line.startswith("redis-cli del "))
    assert stored.delete(deleted) == 1
    worker = project.start(over)
    site.on["/page/5"] = lambda _: worker.send_signal(signal.SIGINT)
    assert worker.wait(LIMIT) == 0, project.log
    site.on.clear()
    assert 0 < len(site.fetched) < PAGES
    assert project.run(resume) == 0, project.log
    assert "Resuming crawl (" in project.log
    assert answers(own) == [every, ""]


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
