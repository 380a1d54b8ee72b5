"""The commands of the first page and of the README print their samples, in a new project with their settings."""

import subprocess
import sys
from pathlib import Path

import pytest

from devtools.site import serving
from tests.project.test_snippets import PLACEHOLDER
from tests.support.documentation import blocks, matches
from tests.support.pages import linked
from tests.support.servers import running

SPIDER = """
from scrapy import Spider


class NewsSpider(Spider):
    name = "news"

    def parse(self, response):
        yield from response.follow_all(css="a")
"""
# Kept, as in the middle of the crawl that the README watches.
CRAWL = "crawl news -s SCHEDULER_PERSIST=True"


def test_matches() -> None:
    """Numbers may differ, words may not."""
    assert matches("took 30 new requests of host-7-1a", "took 1,871 new  requests of vm-1-9-ff")
    assert not matches("took 30 new requests", "took 30 requests")


@pytest.mark.parametrize(("page", "before_info"), [("start.md", ""), ("../README.md", CRAWL)])
def test_start(page: str, before_info: str, tmp_path: Path) -> None:
    """Doctor, crawl and info print the lines of the page; the README has the crawl in its text."""

    def run(*arguments: str, directory: Path) -> str:
        command = [sys.executable, "-m", "scrapy", *arguments]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    with running("valkey", "--appendonly", "yes") as server, serving(linked(30)) as site:
        run("startproject", "news", directory=tmp_path)
        (settings,) = blocks(page, "python")
        with (tmp_path / "news/news/settings.py").open("a") as file:
            file.write(settings.replace(PLACEHOLDER, f"redis://localhost:{server.port}"))
            file.write("DOWNLOAD_DELAY = 0\nROBOTSTXT_OBEY = False\nTELNETCONSOLE_ENABLED = False\n")
        (tmp_path / "news/news/spiders/news.py").write_text(f"{SPIDER}    start_urls = ['{site.url}/']\n")
        lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
        commands = [line.split()[1:] for line in lines if line.startswith("scrapy ")]
        for command, sample in zip(commands, blocks(page, "text"), strict=True):
            if before_info and "info" in command:
                run(*before_info.split(), directory=tmp_path / "news")
            printed = run(*command, directory=tmp_path / "news")
            lines = [line for line in sample.splitlines() if line]
            assert [line for line in lines if not matches(line, printed)] == [], printed
