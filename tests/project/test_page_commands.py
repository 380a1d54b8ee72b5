"""Every `scrapy bloom` of a page does its work in a project, on a server of the test's own."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from scrapy import Request

from scrapy_bloom import BloomRFPDupeFilter
from scrapy_bloom.cli.bloom import ACTIONS
from scrapy_bloom.queue.queue_keys import QueueKeys
from tests.project.test_snippets import EVERY_PAGE, blocks, text_of
from tests.support import command
from tests.support.servers import Server, running
from tests.support.undelivered import entry, leave

FILTER, QUEUE = "news:dupefilter", "news:requests"
PAGES = ("https://example.com/", "https://example.com/a", "https://example.com/b")
SCRAPYS = "scrapy.utils.request.RequestFingerprinter"
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


@pytest.fixture
def own() -> Iterator[Server]:
    """A server with the pages' keys alone."""
    with running("valkey", "--appendonly", "yes") as server:
        yield server


def prepare(client: redis.Redis, directory: Path, line: str) -> None:
    """Leave the crawl and the files that a command needs."""
    if re.search(r"import news(?! --from-file)", line):
        client.sadd(FILTER, *(f"{number:040x}" for number in range(100)))
    elif "--from-file" not in line or "forget" in line:
        dupefilter = BloomRFPDupeFilter(client, FILTER)
        assert not any(dupefilter.request_seen(Request(page)) for page in PAGES)
    client.zadd(QUEUE, {entry(1).member: 0})
    client.zadd(QueueKeys(QUEUE).dead_letters, {entry(2).member: 0})
    for file in ("failed.txt", "urls.txt"):
        (directory / file).write_text("\n".join(PAGES))
    seen = directory / "crawls" / "news" / "requests.seen"
    seen.parent.mkdir(parents=True)
    seen.write_text("".join(f"{number:040x}\n" for number in range(100)))
    for file in re.findall(r"undelivered-\S+", line):
        leave(directory, QUEUE, 3).rename(directory / file)
    if " restore " in line:
        assert command.run("export", "news", "news.bloom", cwd=directory).returncode == 0
        assert command.run("clear", "news", "--yes", cwd=directory).returncode == 0


@pytest.mark.parametrize("line", LINES)
def test_command(line: str, own: Server, tmp_path: Path) -> None:
    """The command ends with its result, and is not refused."""
    settings = {"REQUEST_FINGERPRINTER_CLASS": SCRAPYS} if "requests.seen" in line else {}
    project = command.make_project(tmp_path, REDIS_URL=own.url, **settings)
    with own.client() as client:
        prepare(client, project, line)
        _, _, *arguments = shlex.split(re.sub(r"redis://[\w-]+:6379", own.url, line))
        if "--watch" in arguments:  # runs until Ctrl-C
            command.parse(*arguments)
            return
        done = command.run(*arguments, cwd=project)
        assert done.returncode in ((0, 1) if arguments[0] in ANSWERS else (0,)), done.stdout + done.stderr


def test_every_action_is_shown() -> None:
    """The pages have a command for each action, and every command of a page is in a block that is run."""
    assert {line.split()[2] for line in COMMANDS} >= set(ACTIONS)
    shown = [
        line for page in EVERY_PAGE for line in text_of(page).splitlines() if re.match(r"[^\w`]*scrapy bloom", line)
    ]
    assert len(COMMANDS) == len(shown)
