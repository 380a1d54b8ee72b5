"""Run `scrapy bloom doctor` on keys, or on a spider of `tests.support.spiders.examined`."""

import json
from typing import NamedTuple

import pytest

from tests.support import command

SPIDERS = "tests.support.spiders.examined"
OURS = {"SCHEDULER": "scrapy_bloom.BloomScheduler", "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter"}
LEVELS = ("ok", "advice", "loss")


class Told(NamedTuple):
    """The four parts of a finding but its check."""

    level: str
    text: str
    harm: str
    advice: str


Findings = dict[str, Told]


def examine(url: str, capsys: pytest.CaptureFixture[str], *arguments: str, **settings: object) -> tuple[int, Findings]:
    """Return the exit code and the worst finding of each check."""
    given = {"SPIDER_MODULES": [SPIDERS], "REDIS_URL": url, **settings}
    code = command.call("doctor", *arguments, "--json", **given)
    found = json.loads(capsys.readouterr().out)["findings"]
    by_weight = sorted(found, key=lambda finding: LEVELS.index(finding["level"]))
    return code, {each.pop("check"): Told(**each) for each in by_weight}


def wrong(found: Findings) -> dict[str, str]:
    """Return the levels of the checks with a finding."""
    return {check: told.level for check, told in found.items() if told.level != "ok"}
