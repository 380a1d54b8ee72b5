"""Each setting, default, key, exit code, action and option that a page names is one of the code."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import scrapy_redis
from scrapy.settings import default_settings

import scrapy_bloom
from scrapy_bloom.cli.bloom import ACTIONS
from scrapy_bloom.cli.console import ExitCode
from scrapy_bloom.components import WITHOUT_EFFECT
from scrapy_bloom.settings import _OF_FORKS, OPTIONS, PREFIX, BloomSettings
from tests.project.test_page_tables import options_of
from tests.support.documentation import EVERY_PAGE, text_of

PAGES = (*EVERY_PAGE, "../README.zh-CN.md", "../SECURITY.md", "../example_project/README.md")
# A typo, and an environment variable.
OTHERS = {"SCHEDULER_PERSISTS", "REDIS_CA"}
SETTING = r"\b(?:BLOOMFILTER|SCHEDULER|REDIS)_[A-Z_]*[A-Z]\b(?!_)"
DEFAULTS = {option.setting: option.default_text for option in OPTIONS}
# A setting and its default, in either order.
WITH_DEFAULT = (
    r"`(BLOOMFILTER_\w+)`[^.|`]{0,60}?\bby default ([\d.,e-]*\d)",
    r"\bdefault\s`(BLOOMFILTER_\w+)`\sof\s([\d.,e-]*\d)",
)
KEY = r"\{(?:<|\w+:)[^{}\n`]*\}:([a-z-]+)"
EXIT_CODE = r"(?i)\b(?:exits with|exit code(?: is)?|(?<!status )code) (\d+)\b"
# Of every action, and of other programs.
COMMON = {"--help", "--json", "-s", "-a"}
FOREIGN = {"--default_lua_flags", "--html", "--unique"}
OF_ACTIONS = {name: {option.split()[0] for option in options_of(name)} | COMMON for name in ACTIONS}
ALL_OPTIONS = set().union(*OF_ACTIONS.values(), FOREIGN)


def sources(*packages: str) -> str:
    """Return the source text of packages, scripts included."""
    files = (path for package in packages for path in Path(package).parent.rglob("*") if path.suffix in (".py", ".lua"))
    return "".join(path.read_text() for path in files)


OF_REDIS = {*re.findall(SETTING, sources(scrapy_redis.__file__)), *vars(default_settings), *WITHOUT_EFFECT, *_OF_FORKS}
OURS = {PREFIX + field.name.upper() for field in fields(BloomSettings)}
OUR_SOURCES = sources(scrapy_bloom.__file__)


@pytest.mark.parametrize("page", PAGES)
def test_names(page: str) -> None:
    """The page has no setting, default, key, exit code, action or option that the code does not have."""
    content = text_of(page)
    assert {*re.findall(SETTING, content)} <= {*OURS, *OF_REDIS, *OTHERS}
    told = [match for pattern in WITH_DEFAULT for match in re.findall(pattern, content)]
    assert [each for each in told if DEFAULTS[each[0]] != each[1]] == []
    assert [name for name in re.findall(KEY, content) if f":{name}" not in OUR_SOURCES] == []
    assert {int(code) for code in re.findall(EXIT_CODE, content)} <= {*ExitCode, 137}
    for line in re.findall(r"(?:`|^\$ |^)scrapy bloom\s+([a-z][^`]*?)(?:`|$)", content, re.MULTILINE):
        action, *words = shlex.split(line.replace("\n", " "), comments=True)
        assert action in ACTIONS
        assert {word for word in words if re.match("--?[a-z]", word)} <= OF_ACTIONS[action]
    assert {*re.findall(r"`(--[a-z][\w-]*)", content)} <= ALL_OPTIONS
