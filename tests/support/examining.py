"""Run `scrapy bloom doctor` on keys, or on a spider of `tests.support.spiders.examined`."""

import json

import pytest

from tests.support import command

SPIDERS = "tests.support.spiders.examined"
OURS = {"SCHEDULER": "scrapy_bloom.BloomScheduler", "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter"}
LEVELS = ("ok", "advice", "loss")

Findings = dict[str, tuple[str, str, str]]


def examine(url: str, capsys: pytest.CaptureFixture[str], *arguments: str, **settings: object) -> tuple[int, Findings]:
    """Return the exit code and the worst finding of each check: level, text, and advice."""
    given = {"SPIDER_MODULES": [SPIDERS], "REDIS_URL": url, **settings}
    code = command.call("doctor", *arguments, "--json", **given)
    found = json.loads(capsys.readouterr().out)["findings"]
    by_weight = sorted(found, key=lambda finding: LEVELS.index(finding["level"]))
    return code, {each["check"]: (each["level"], each["text"], each["advice"]) for each in by_weight}


def wrong(found: Findings) -> dict[str, str]:
    """Return the levels of the checks with a finding."""
    return {check: level for check, (level, _, _) in found.items() if level != "ok"}
