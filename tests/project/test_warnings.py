"""A warning is an error: in tests, and in the processes that they start."""

import builtins
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.support import forked

WARNS = 'import warnings\nwarnings.warn("an old name", DeprecationWarning)\n'
# In a regular expression, these characters mean themselves; a dot means itself, too.
LITERAL = re.compile(r"[\w .'/<-]*")


@pytest.fixture
def exceptions(pytestconfig: pytest.Config) -> list[tuple[str, type[Warning], str]]:
    """The text, the category and the module of each warning that is allowed."""
    first, *others = pytestconfig.getini("filterwarnings")
    assert first == "error"
    split = [each.split(":") for each in others]
    assert {action for action, *_ in split} == {"ignore"}
    return [(text, getattr(builtins, category), module) for _, text, category, module in split]


def test_started_process() -> None:
    """A warning in a process of Python ends it."""
    ended = subprocess.run([sys.executable, "-c", WARNS], check=False, capture_output=True, text=True)
    assert (ended.returncode, "DeprecationWarning: an old name" in ended.stderr) == (1, True)


def test_forked_process(tmp_path: Path) -> None:
    """A warning in a forked process is an exception."""
    (tmp_path / "spider.py").write_text(WARNS)
    ended = forked.run(("runspider", "spider.py"), tmp_path, os.environ)
    assert ended.returncode != 0
    assert "DeprecationWarning: an old name" in ended.stderr


def test_exceptions_are_narrow(exceptions: list[tuple[str, type[Warning], str]]) -> None:
    """An exception is one of a foreign module, with a text that pytest and Python read alike."""
    assert exceptions
    for text, category, module in exceptions:
        assert LITERAL.fullmatch(text + module)
        assert len(text) > len("a name")
        warnings.warn_explicit(f"{text} and so on", category, "file.py", 1, module)
        for own in ("scrapy_bloom.scheduler", "tests.conftest"):
            with pytest.raises(category, match=re.escape(text)):
                warnings.warn_explicit(f"{text} and so on", category, "file.py", 1, own)
