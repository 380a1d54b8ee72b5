"""Every `scrapy bloom` of a page does its work in a project, on a server of the test's own, and prints its sample."""

import itertools
import json
import os
import pickle
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from scrapy import Request

from devtools.site import serving
from scrapy_bloom import BloomRFPDupeFilter
from scrapy_bloom.cli.bloom import ACTIONS
from scrapy_bloom.queue.keys import QueueKeys
from tests.commands.test_info import register
from tests.support import command, forked
from tests.support.documentation import EVERY_PAGE, all_blocks, blocks, matches, section, text_of
from tests.support.pages import linked
from tests.support.servers import Server, running

FILTER, QUEUE = "news:dupefilter", "news:requests"
PAGES = ("https://example.com/", "https://example.com/a", "https://example.com/b")
# So many that their number is a plural.
MORE = [f"https://example.com/more/{number}" for number in range(200)]
SCRAPYS = "scrapy.utils.request.RequestFingerprinter"
SEEN = "requests.seen"
LINKS_SPIDER = """
import scrapy

class LinksSpider(scrapy.Spider):
    name = "links"

    async def start(self):
        yield scrapy.Request(self.url)

    def parse(self, response):
        yield from response.follow_all(css="a")
"""
# Read-only actions answer by their exit code, and so does a `clear` that only shows the data.
ANSWERS = ("check", "doctor", "clear")
COMMANDS = [
    line.removeprefix("$ ")
    for page in EVERY_PAGE
    for language in ("bash", "console")
    for block in blocks(page, language)
    for line in block.splitlines()
    if line.startswith(("scrapy bloom", "$ scrapy bloom"))
]
LINES = sorted({re.split(" [>|] ", line)[0].partition("  #")[0] for line in COMMANDS})
SAMPLES = [
    (before.text.splitlines()[0], sample.text)
    for before, sample in itertools.pairwise(all_blocks("commands.md"))
    if sample.language == "text"
]
# A command whose object has all keys that its page lists.
WITH_JSON = {
    "plan": "plan --capacity 1e8",
    "check": "check news https://example.com/",
    "forget": "forget news https://example.com/a",
    "export": "export news news.bloom",
    "restore": "restore news news.bloom",
}


@pytest.fixture
def own() -> Iterator[Server]:
    """A server with the pages' keys alone."""
    with running("valkey", "--appendonly", "yes") as server:
        yield server


def crawl(directory: Path) -> int:
    """Crawl a site with Scrapy's own scheduler and a JOBDIR; return the number of pages."""
    (directory / "links.py").write_text(LINKS_SPIDER)
    own = {"SCHEDULER": "scrapy.core.scheduler.Scheduler", "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
    settings = [f"--set={name}={value}" for name, value in {**own, "JOBDIR": "crawls/news"}.items()]
    with serving(linked(100)) as site:
        arguments = ("runspider", "links.py", "-a", f"url={site.url}/", *settings)
        done = forked.run(arguments, directory, {**os.environ, "PYTHONPATH": f"{directory}"})
        assert done.returncode == 0, done.stderr
        assert set(site.paths) == set(site.links)
        return len(site.links)


def prepare(client: redis.Redis, directory: Path, line: str) -> None:
    """Leave the crawl and the files that a command needs."""
    if re.search(r"import news(?! --from-file)", line):
        client.sadd(FILTER, *(f"{number:040x}" for number in range(100)))
    elif "--from-file" not in line or "forget" in line:
        dupefilter = BloomRFPDupeFilter(client, FILTER)
        assert not any(dupefilter.request_seen(Request(page)) for page in (*PAGES, *MORE))
    one, other = (pickle.dumps(Request(f"https://example.com/{number}").to_dict()) for number in (1, 2))
    client.zadd(QUEUE, {one: 0})
    client.zadd(QueueKeys(QUEUE).dead_letters, {other: 0})
    for file in ("failed.txt", "urls.txt"):
        (directory / file).write_text("\n".join(PAGES))
    if SEEN in line:
        crawl(directory)
    if " restore " in line:
        assert command.run("export", "news", "news.bloom", cwd=directory).returncode == 0
        assert command.run("clear", "news", "--yes", cwd=directory).returncode == 0


@pytest.mark.parametrize("line", LINES)
def test_command(line: str, own: Server, tmp_path: Path) -> None:
    """The command ends with its result, and is not refused."""
    settings = {"REQUEST_FINGERPRINTER_CLASS": SCRAPYS} if SEEN in line else {}
    project = command.make_project(tmp_path, REDIS_URL=own.url, **settings)
    with own.client() as client:
        prepare(client, project, line)
        _, _, *arguments = shlex.split(re.sub(r"redis://[\w-]+:6379", own.url, line))
        if "--watch" in arguments:  # runs until Ctrl-C
            command.parse(*arguments)
            return
        done = command.run(*arguments, cwd=project)
        assert done.returncode in ((0, 1) if arguments[0] in ANSWERS else (0,)), done.stdout + done.stderr


def test_requests_of_a_jobdir(own: Server, tmp_path: Path) -> None:
    """The import of a page reads every request that the installed Scrapy has seen."""
    project = command.make_project(tmp_path, REDIS_URL=own.url, REQUEST_FINGERPRINTER_CLASS=SCRAPYS)
    pages = crawl(project)
    (line,) = (line for line in LINES if SEEN in line)
    report = command.report(*shlex.split(line)[2:], cwd=project)
    assert (report["members"], report["added"]) == (pages, pages)


def test_every_action_is_shown() -> None:
    """The pages have a command for each action, and every command of a page is in a block that is run."""
    assert {line.split()[2] for line in COMMANDS} >= set(ACTIONS)
    shown = [
        line for page in EVERY_PAGE for line in text_of(page).splitlines() if re.match(r"[^\w`]*scrapy bloom", line)
    ]
    assert len(COMMANDS) == len(shown)


def run(line: str, own: Server, directory: Path) -> str:
    """Return the output of a command in a project with the state that it needs."""
    project = command.make_project(directory, REDIS_URL=f"redis://localhost:{own.port}")
    with own.client() as client:
        prepare(client, project, line)
        seconds, _ = client.time()
        if "import" not in line:  # which is refused beside a live worker
            register(client, "news", "host-7-1a2b3c4d", holds=0, contact=int(seconds) - 3)
    return command.run(*shlex.split(line)[2:], cwd=project).stdout


@pytest.mark.parametrize(("line", "sample"), SAMPLES)
def test_sample(line: str, sample: str, own: Server, tmp_path: Path) -> None:
    """The command prints the lines of the sample behind it."""
    printed = run(line, own, tmp_path)
    assert [each for each in sample.splitlines() if each and not matches(each, printed)] == [], printed


def paths(value: object, path: str = "") -> Iterator[str]:
    """Yield the keys of a JSON object, each with its path."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from paths(below, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for below in value:
            yield from paths(below, f"{path}[]")
    else:
        yield path


@pytest.mark.parametrize("action", ACTIONS)
def test_keys_of_json(action: str, own: Server, tmp_path: Path) -> None:
    """The keys that an action prints are those of its table."""
    printed = json.loads(run(f"scrapy bloom {WITH_JSON.get(action, f'{action} news')} --json", own, tmp_path))
    rows = re.findall(r"^\| (`.*?) \|", section("docs/json-output.md", action), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(.*?)`", row)} == {*paths(printed)}
