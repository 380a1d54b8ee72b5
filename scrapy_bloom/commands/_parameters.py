"""The parameters of a filter as options of an action."""

import argparse
from dataclasses import replace
from typing import Any

from scrapy_bloom._options import CAPACITY, ERROR_RATE, EXPANSION, TTL, Option
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.settings import PREFIX, BloomSettings

_OPTIONS: tuple[Option[Any], ...] = (CAPACITY, ERROR_RATE, EXPANSION, TTL)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let an action be told the parameters of a filter."""
    for option in _OPTIONS:
        meaning = f"{option.meaning} (default {option.default_text})"
        parser.add_argument(_flag(option), metavar="N", help=meaning)


def given(options: argparse.Namespace, settings: BloomSettings) -> dict[str, Any]:
    """Return the parameters that were given, by their names; the others are those of the settings.

    Raises:
        ConfigError: one is not allowed, or not together with the others; the text names the options.
    """
    found = {option: getattr(options, option.name) for option in _OPTIONS if getattr(options, option.name) is not None}
    values = {option.name: option.read(_flag(option), value) for option, value in found.items()}
    try:
        replace(settings, **values).parameters()
    except ConfigError as error:
        text = str(error)
        for option in found:
            text = text.replace(f"{PREFIX}{option.name.upper()} = ", f"{_flag(option)} = ")
        raise ConfigError(text) from None
    return values


def _flag(option: Option[Any]) -> str:
    return "--" + option.name.replace("_", "-")
