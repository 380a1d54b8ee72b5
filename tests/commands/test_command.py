"""The command as a whole: its help, its exit codes, and no cost to other Scrapy commands."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from scrapy.exceptions import UsageError

from devtools.servers import free_port
from scrapy_bloom.cli.bloom import ACTIONS
from tests.support import command
from tests.support.servers import Server

# Slow imports that Scrapy itself does without.
HEAVY = {"redis", "mmh3", "hiredis", "scrapy_redis", "tqdm", "scrapy_bloom.dupefilter"}
LIST = f"""
import sys
from scrapy.cmdline import execute
try:
    execute(["scrapy", "list"])
finally:
    print(sorted({HEAVY!r} & set(sys.modules)), "scrapy_bloom.cli.bloom" in sys.modules)
"""


def test_costs_nothing(tmp_path: Path) -> None:
    """A project's `scrapy list` loads the command but none of the slow modules."""
    project = command.make_project(tmp_path)
    said = subprocess.run([sys.executable, "-c", LIST], cwd=project, capture_output=True, text=True, check=False)
    assert said.stdout.splitlines() == ["news", "shop", "[] True"], said.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "give an ACTION: plan, info, "),
        (["nothing"], "'nothing' is not an action; give one of them: plan, "),
        (["--json", "plan"], "--json: no such option"),
        (["plan", "-s", "CAPACITY"], "Invalid -s or -a value"),
        (["plan", "--nothing"], None),
        (["plan", "--capac", "1000"], None),
    ],
)
def test_wrong_options(arguments: list[str], text: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown action or option is refused by name before any work is done."""
    with pytest.raises((UsageError, SystemExit)) as refused:
        command.call(*arguments)
    if text is not None:
        assert text in str(refused.value)
    else:
        assert str(refused.value) == "2"
        assert arguments[1] in capsys.readouterr().err


def test_settings_stand_before_and_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """A setting counts before or after the action; the later one wins."""
    assert command.call("-s", "BLOOMFILTER_CAPACITY=5000", "plan") == 0
    assert "5,000 requests" in capsys.readouterr().out
    assert command.call("-s", "BLOOMFILTER_CAPACITY=5000", "plan", "-s", "BLOOMFILTER_CAPACITY=7000") == 0
    assert "7,000 requests" in capsys.readouterr().out


@pytest.mark.parametrize("action", ["info", "doctor", "check", "clear"])
def test_no_server(action: str, valkey: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """An unreachable server has its own exit code; one outside a cluster is refused with the setting's name."""
    arguments = [action, *["http://example.com/"] * (action == "check"), "--key", "shop:dupefilter", "--redis-url"]
    for scheme in ("redis", "redis+cluster"):
        assert command.call(*arguments, f"{scheme}://127.0.0.1:{free_port()}") == 3
        assert "Redis is unreachable" in capsys.readouterr().err
    assert command.call(*arguments, valkey.url.replace("redis", "redis+cluster")) == 1 + (action != "doctor")
    printed = capsys.readouterr()
    assert "belongs to no cluster: begin REDIS_URL with redis://" in printed.out + printed.err


class Failing:
    """An add-on with a fault of its own."""

    def update_settings(self, settings: object) -> None:  # noqa: ARG002  # as Scrapy calls it
        """Fail with an address."""
        raise ValueError("cannot reach redis://user:secret@localhost")


WORDS = {"check": ["https://example.com/"], "forget": ["https://example.com/"], "requeue": ["--queue", "shop:requests"]}


@pytest.mark.parametrize("action", ["info", "doctor", "check", "clear", "forget", "requeue", "import"])
@pytest.mark.parametrize("kind", ["unreachable", "refused", "misread", "misplaced", "a wrong type", "an add-on"])
def test_no_password(kind: str, action: str, valkey: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No error has the password of a URL."""
    urls = {
        "unreachable": f"redis://user:secret@127.0.0.1:{free_port()}",
        "refused": valkey.url.replace("//", "//user:secret@"),
        "misread": "redis://user:secret@[",
        "a wrong type": valkey.url.replace("//", "//default:secret@"),
        "an add-on": valkey.url,
    }
    settings = {"ADDONS": {Failing: 1}} if kind == "an add-on" else {}
    with valkey.client() as client:
        client.set(key, "a string")
    address = ["--redis-url", urls[kind]] if kind in urls else ["redis://user:secret@localhost", "--nothing"]
    place = [*WORDS.get(action, []), "--key", key, "-s", "BLOOMFILTER_RETRY_TIMEOUT=0", *address]
    with suppress(SystemExit):
        command.call(action, *place, **settings)
    printed = capsys.readouterr()
    assert "secret" not in printed.out + printed.err
    assert printed.out + printed.err


def test_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a spider and a key the command fails; a project of two spiders has both listed."""
    for action in ("info", "doctor"):
        assert command.call(action, REDIS_URL=f"redis://127.0.0.1:{free_port()}") == 2
        assert "give the name of a spider of the project, or --key KEY" in capsys.readouterr().err
    assert command.call("info", "shop") == 2
    assert "'shop' is not a spider" in capsys.readouterr().err
    project = command.make_project(tmp_path)
    said = command.run("info", cwd=project)
    assert said.returncode == 2
    assert "there are news, shop" in said.stderr


JOBS = """
import scrapy


class JobSpider(scrapy.Spider):
    name = "jobs"

    def __init__(self, job, **arguments):
        super().__init__(**arguments)
        self.job = int(job)


class ComputingSpider(JobSpider):
    name = "computing"

    @classmethod
    def from_crawler(cls, crawler, **arguments):
        spider = super().from_crawler(crawler, **arguments)
        crawler.settings.set("SCHEDULER_QUEUE_KEY", f"{spider.job}:waiting", priority="spider")
        return spider
"""


def test_keys_by_an_attribute(valkey: Server, key: str, tmp_path: Path) -> None:
    """An action makes the spider as a crawl does if its keys have an attribute, or if it is given arguments."""
    keys = {"SCHEDULER_DUPEFILTER_KEY": f"{key}:%(job)s", "SCHEDULER_QUEUE_KEY": f"{key}:%(job)s:%(spider)s"}
    project = command.make_project(tmp_path, REDIS_URL=valkey.url, **keys)
    (project / "project" / "spiders.py").write_text(JOBS)
    for spider, queue in (("jobs", f"{key}:7:jobs"), ("computing", "7:waiting")):
        report = command.report("info", spider, "-a", "job=7", cwd=project)
        assert (report["key"], [each["key"] for each in report["queues"]]) == (f"{key}:7", [queue])
    assert command.report("doctor", "jobs", "-a", "job=7", cwd=project)["key"] == f"{key}:7"
    said = command.run("info", "jobs", cwd=project)
    assert (said.returncode, "'job': give its arguments by -a" in said.stderr) == (2, True)
    said = command.run("info", "jobs", "-a", "job", cwd=project)
    assert (said.returncode, "use NAME=VALUE" in said.stderr) == (2, True)


def test_with_the_addon(tmp_path: Path) -> None:
    """The add-on's settings apply, and its own refusal is printed once."""
    project = command.make_project(tmp_path, ADDONS={"scrapy_bloom.Addon": 500}, BLOOMFILTER_CAPACITY=0)
    said = command.run("info", "shop", cwd=project)
    assert said.returncode == 2
    assert said.stderr.count("(BLOOMFILTER_CAPACITY) = 0") == 1


def test_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The main help lists actions and exit codes; an action's help lists its options, with examples."""
    said = command.run("--help", cwd=tmp_path)
    assert said.returncode == 0
    assert "3: Redis is unreachable" in said.stdout
    for action in ACTIONS:
        assert f"  {action} " in said.stdout
        with pytest.raises(SystemExit) as ended:
            command.call(action, "--help")
        assert ended.value.code == 0
        printed = capsys.readouterr().out
        assert f"usage: scrapy bloom {action}" in printed
        assert "--redis-url " in printed or action == "plan"
        assert "for example:\n" in printed


@pytest.mark.parametrize("action", ["check", "export", "restore"])
def test_missing_arguments(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing argument is named and is an error, not the answer "no"."""
    with pytest.raises(SystemExit) as ended:
        command.call(action)
    assert ended.value.code == 2
    assert "arguments are required: " in capsys.readouterr().err


def test_a_project_that_cannot_be_read(tmp_path: Path) -> None:
    """An unexpected error is one line and exit code 2."""
    project = command.make_project(tmp_path, ADDONS={"project.spiders.Nothing": 1})
    said = command.run("info", "shop", cwd=project)
    assert (said.returncode, len(said.stderr.splitlines())) == (2, 1)
