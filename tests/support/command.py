"""The command `scrapy bloom` as a separate process, in a project and outside."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scrapy.settings import Settings

from devtools.crawl_process import ROOT
from scrapy_bloom.cli.bloom import Command
from tests.support import forked

SPIDERS = """
import scrapy

class ShopSpider(scrapy.Spider):
    name = "shop"

class NewsSpider(scrapy.Spider):
    name = "news"
"""


def make_project(directory: Path, **settings: object) -> Path:
    """Create a project with the spiders `shop` and `news` and these settings; return its directory."""
    package = directory / "project"
    package.mkdir(parents=True)
    (directory / "scrapy.cfg").write_text("[settings]\ndefault = project.settings\n")
    (package / "__init__.py").write_text("")
    (package / "spiders.py").write_text(SPIDERS)
    chosen = {
        "SPIDER_MODULES": ["project.spiders"],
        "SCHEDULER": "scrapy_bloom.BloomScheduler",
        "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter",
        **settings,
    }
    (package / "settings.py").write_text("".join(f"{name} = {value!r}\n" for name, value in chosen.items()))
    return directory


def start(*arguments: str, cwd: Path) -> "subprocess.Popen[str]":
    """Start the command `scrapy bloom` with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-m", "scrapy", "bloom", *arguments],
        cwd=cwd,
        env=_environment(cwd),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run the command `scrapy bloom` with these arguments to its end."""
    return forked.run(("bloom", *arguments), cwd, _environment(cwd))


def report(*arguments: str, cwd: Path) -> dict[str, Any]:
    """Return the object that the command prints with `--json`."""
    said = run(*arguments, "--json", cwd=cwd)
    assert not said.stderr, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def parse(*arguments: str, **settings: object) -> tuple[Command, argparse.Namespace]:
    """Return the command in this process with its options parsed, outside every project."""
    command, parser = Command(), argparse.ArgumentParser()
    command.settings = Settings(settings)
    command.add_options(parser)
    options, rest = parser.parse_known_args(arguments)
    command.read_options(rest, options)
    return command, options


def call(*arguments: str, **settings: object) -> int:
    """Run the command in this process, outside every project; return its exit code."""
    command, options = parse(*arguments, **settings)
    command.run([], options)
    return command.exitcode


def _environment(cwd: Path) -> dict[str, str]:
    """Return the tests' environment without settings of a surrounding project."""
    others = ("SCRAPY_PROJECT", "SCRAPY_SETTINGS_MODULE", "PYTHONUNBUFFERED")
    mine = {name: value for name, value in os.environ.items() if name not in others}
    return {**mine, "PYTHONPATH": os.pathsep.join((str(ROOT), str(cwd)))}
