"""The documentation's snippets work as described, on a server and a site of this test's own."""

import ast
import doctest
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
PAGES = 30


@pytest.fixture
def own() -> Iterator[Server]:
    """A server with the documentation's keys alone."""
    with running("valkey") as server:
        yield server


@pytest.fixture
def stored(own: Server) -> Iterator[redis.Redis]:
    """Yield a client of that server."""
    with own.client(decode_responses=True) as client:
        yield client


# The tutorial


class Project:
    """The tutorial's project, whose commands are run on a test's site and server."""

    def __init__(self, directory: Path, site: Site, server: Server) -> None:
        self._site = site
        self.directory = directory
        self.commands = [line for block in blocks("tutorial.md", "bash") for line in block.splitlines()]
        (creation,) = (line for line in self.commands if line.startswith("scrapy startproject"))
        with self._started(creation, directory) as process:
            assert process.wait(LIMIT) == 0
        self.directory /= creation.split()[-1]
        assert f"cd {self.directory.name}" in self.commands
        page = (DOCS / "tutorial.md").read_text()
        files = re.findall(r"`(tutorial/\S+\.py)`:\n\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        assert len(files) == len(blocks("tutorial.md", "python"))
        for file, code in files:
            with (self.directory / file).open("a") as opened:
                opened.write(code.replace(PLACEHOLDER, server.url))
        with (self.directory / "tutorial" / "settings.py").open("a") as opened:
            opened.write(IMPOLITE)

    def crawl(self, output: str) -> AbstractContextManager[Process]:
        """Start the tutorial's only command that writes this output."""
        (command,) = (line for line in self.commands if line.startswith("scrapy crawl") and f"-O {output}" in line)
        assert SITE in command
        return self._started(command.replace(SITE, f"{self._site.url}/"), self.directory)

    def output_of(self, beginning: str) -> str:
        """Return the output of the tutorial's only command of the shell that begins so."""
        (command,) = (line for line in self.commands if line.startswith(beginning))
        return subprocess.check_output(["sh", "-c", command], cwd=self.directory, text=True)

    def pages(self, output: str) -> list[str]:
        """Return the paths of the pages in an output."""
        items = json.loads("[" + ",".join((self.directory / output).read_text().splitlines()) + "]")
        return [item["url"].removeprefix(self._site.url) for item in items]

    @contextmanager
    def _started(self, command: str, directory: Path) -> Iterator[Process]:
        program, *arguments = command.split()
        assert program == "scrapy"
        environment = {name: value for name, value in os.environ.items() if name != "SCRAPY_PROJECT"}
        with (directory / "log").open("ab") as log:
            process = forked.start(arguments, directory, environment, log, log)
        try:
            yield process
        except BaseException as error:
            error.add_note((directory / "log").read_text()[-5000:])
            raise
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def site() -> Iterator[Site]:
    """The site that is crawled instead of the tutorial's."""
    with serving(linked(PAGES)) as site:
        yield site


@pytest.mark.long
def test_tutorial_shares_a_crawl(tmp_path: Path, own: Server, stored: redis.Redis, site: Site) -> None:
    """Two workers fetch every page once between them, and leave no keys."""

    def wait_for_both(_: str) -> None:
        """Answer the first page when both workers run: one alone would finish this small site."""
        until(lambda: len(inspect(stored, "pages:requests").workers) == 2)

    site.on["/"] = wait_for_both
    project = Project(tmp_path, site, own)
    with ExitStack() as stack:
        workers = [stack.enter_context(project.crawl(output)) for output in ("one.jsonl", "two.jsonl")]
        assert [worker.wait(LIMIT) for worker in workers] == [0, 0]
    assert sorted(project.pages("one.jsonl") + project.pages("two.jsonl")) == sorted(site.links)
    assert project.output_of("cat one.jsonl") == ""
    (sample,) = blocks("tutorial.md", "text")
    log = (project.directory / "log").read_text()
    assert [line for line in sample.splitlines() if not matches(line, log)] == [], log
    assert stored.keys() == []


def test_tutorial_stops_and_goes_on_and_begins_anew(
    tmp_path: Path, own: Server, stored: redis.Redis, site: Site
) -> None:
    """A stopped crawl resumes, and another one starts afresh."""
    project = Project(tmp_path, site, own)
    with project.crawl("three.jsonl") as worker:
        site.on["/page/5"] = lambda _: worker.send_signal(signal.SIGINT)
        assert worker.wait(LIMIT) == 0
    site.on.clear()
    before = project.pages("three.jsonl")
    assert 0 < len(before) < PAGES
    (scan,) = (line for line in project.commands if line.startswith("redis-cli --scan"))
    assert set(stored.scan_iter(shlex.split(scan)[-1])) == set(stored.keys())
    assert stored.exists("pages:requests", "pages:dupefilter") == 2
    with project.crawl("four.jsonl") as worker:
        assert worker.wait(LIMIT) == 0
    assert sorted(before + project.pages("four.jsonl")) == sorted(site.links)
    assert project.output_of("cat three.jsonl") == ""
    assert stored.exists("pages:dupefilter") == 1
    with project.crawl("five.jsonl") as worker:
        assert worker.wait(LIMIT) == 0
    assert sorted(project.pages("five.jsonl")) == sorted(site.links)
    assert stored.keys() == []


# The other pages


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
    assert names["seen"].info().capacity == 10_000_000


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
    assert examples.examples
    assert not doctest.DocTestRunner().run(examples, out=report.append).failed, "".join(report)
    assert stored.keys() == []
