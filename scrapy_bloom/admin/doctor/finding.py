"""A finding of a check."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The weight of a finding: nothing to do, something worth doing, or something by which a crawl loses pages."""

    OK = "ok"
    ADVICE = "advice"
    LOSS = "loss"


@dataclass(frozen=True)
class Finding:
    """A finding: which `check` it is of, how much it matters, what there is, and what to do about it."""

    check: str
    level: Level
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """Return a finding with nothing to do."""
    return Finding(check, Level.OK, text)


def advice(check: str, text: str, what_to_do: str) -> Finding:
    """Return a finding that is worth doing something about."""
    return Finding(check, Level.ADVICE, text, what_to_do)


def loss(check: str, text: str, what_to_do: str) -> Finding:
    """Return a finding by which a crawl loses pages, or fetches them again, or does not start."""
    return Finding(check, Level.LOSS, text, what_to_do)
