"""Every `scrapy bloom` of a page does its work in a project, on a server of the test's own, and prints its sample."""

import itertools
import json
import pickle
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from scrapy import Request, Spider

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter
from scrapy_bloom.cli.bloom import ACTIONS
from scrapy_bloom.queue.keys import QueueKeys
from tests.commands.test_info import register
from tests.support import command
from tests.support.documentation import EVERY_PAGE, all_blocks, matches, section, text_of
from tests.support.examining import OURS
from tests.support.servers import Server, running

FILTER, QUEUE = "news:dupefilter", "news:requests"
PAGES = ("https://example.com/", "https://example.com/a", "https://example.com/b")
# So many that their number is a plural.
MORE = [f"https://example.com/more/{number}" for number in range(200)]
# Of a crawl with a JOBDIR, which tests/commands/test_import.py makes.
SEEN = "requests.seen"
# Read-only actions answer by their exit code, and so does a `clear` that only shows the data.
ANSWERS = ("check", "doctor", "clear")
COMMANDS = [
    line.removeprefix("$ ")
    for page in EVERY_PAGE
    for block in all_blocks(page)
    for line in block.text.splitlines()
    if block.language in ("bash", "console") and line.startswith(("scrapy bloom", "$ scrapy bloom"))
]
LINES = sorted({re.split(" [>|] ", line)[0].partition("  #")[0] for line in COMMANDS})
SAMPLES = {
    before.text.splitlines()[0].removeprefix("$ "): sample.text
    for before, sample in itertools.pairwise(all_blocks("commands.md"))
    if sample.language == "text"
}
# A command whose object has all keys that its page lists.
WITH_JSON = {
    "plan": "plan --capacity 1e8",
    "check": "check news https://example.com/",
    "forget": "forget news https://example.com/a",
    "export": "export news news.bloom",
    "restore": "restore news news.bloom",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with the pages' keys alone."""
    with running("valkey", "--appendonly", "yes") as server:
        yield server


@pytest.fixture
def own(server: Server) -> Iterator[Server]:
    """The server without keys."""
    yield server
    with server.client() as client:
        for name in client.scan_iter():
            client.delete(name)


class NewsSpider(Spider):
    """The spider of the pages."""

    name = "news"


Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def run(own: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command of a page with the state that it needs; returns its exit code and output."""
    monkeypatch.chdir(tmp_path)
    url = f"redis://localhost:{own.port}"
    settings: dict[str, object] = {**OURS, "SPIDER_MODULES": [__name__], "REDIS_URL": url}

    def run(line: str) -> tuple[int, str, str]:
        with own.client() as client:
            prepare(client, tmp_path, line, settings)
            seconds, _ = client.time()
            if "import" not in line:  # which is refused beside a live worker
                register(client, "news", "host-7-1a2b3c4d", holds=0, contact=int(seconds) - 3)
        capsys.readouterr()
        code = command.call(*shlex.split(re.sub(r"redis://[\w-]+:6379", url, line))[2:], **settings)
        return code, *capsys.readouterr()

    return run


def prepare(client: redis.Redis, directory: Path, line: str, settings: dict[str, object]) -> None:
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
    if ":items:" in line:
        BloomFilter(client, "news:items:dupefilter").add("an item")
    if " restore " in line:
        assert command.call("export", "news", "news.bloom", **settings) == 0
        assert command.call("clear", "news", "--yes", **settings) == 0


@pytest.mark.parametrize("line", [line for line in LINES if SEEN not in line])
def test_command(line: str, run: Run, tmp_path: Path) -> None:
    """The command ends with its result, and is not refused; it prints the lines of the sample behind it."""
    _, _, action, *arguments = shlex.split(line)
    if "--help" in line:
        assert command.run(action, *arguments, cwd=tmp_path).returncode == 0
        return
    code, out, err = run(line)
    assert code in ((0, 1) if action in ANSWERS else (0,)), out + err
    sample = SAMPLES.get(line, "").splitlines()
    assert [each for each in sample if each and not matches(each, out)] == [], out


def test_every_action_is_shown() -> None:
    """The pages have a command for each action, and every command of a page is in a block that is run."""
    assert {line.split()[2] for line in COMMANDS} >= set(ACTIONS)
    shown = [
        line for page in EVERY_PAGE for line in text_of(page).splitlines() if re.match(r"[^\w`]*scrapy bloom", line)
    ]
    assert len(COMMANDS) == len(shown)
    assert SAMPLES.keys() <= {*LINES}


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
def test_keys_of_json(action: str, run: Run) -> None:
    """The keys that an action prints are those of its table."""
    printed = json.loads(run(f"scrapy bloom {WITH_JSON.get(action, f'{action} news')} --json")[1])
    rows = re.findall(r"^\| (`.*?) \|", section("docs/api.md", action), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(.*?)`", row)} == {*paths(printed)}
