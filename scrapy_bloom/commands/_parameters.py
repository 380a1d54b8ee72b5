"""The parameters of a filter as options of an action."""

import argparse
from typing import Any

from scrapy_bloom._options import CAPACITY, ERROR_RATE, EXPANSION, TTL, Option

_OPTIONS: tuple[Option[Any], ...] = (CAPACITY, ERROR_RATE, EXPANSION, TTL)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let an action be told the parameters of a filter."""
    for option in _OPTIONS:
        meaning = f"{option.meaning} (default {option.default_text})"
        parser.add_argument(_flag(option), metavar="N", help=meaning)


def given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that were given, by their names.

    Raises:
        ConfigError: one is not allowed; the text names the option.
    """
    return {
        option.name: option.read(_flag(option), getattr(options, option.name))
        for option in _OPTIONS
        if getattr(options, option.name) is not None
    }


def _flag(option: Option[Any]) -> str:
    return "--" + option.name.replace("_", "-")
