"""Recognize calls of the package's scripts, in full or by hash."""

from hashlib import sha1
from typing import Any

from scrapy_bloom.transport.scripts import load_script


def text_and_hash(package: str, *names: str) -> tuple[str, str]:
    """Return the text of a script, by the arguments of `load_script`, and its hash."""
    text = load_script(package, *names)
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


def calls(command: tuple[Any, ...], package: str, *names: str) -> bool:
    """Return whether a command calls this script."""
    return command[:2] in zip(("EVAL", "EVALSHA"), text_and_hash(package, *names), strict=True)
