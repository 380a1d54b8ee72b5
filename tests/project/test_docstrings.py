"""Docstrings: their examples run, and the public ones have all their sections."""

import ast
import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest
import redis
from scrapy.settings import Settings

import scrapy_bloom
from scrapy_bloom.settings import BloomSettings
from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
SECTIONS = re.compile(r"^(Args|Attributes|Example|Raises|Returns|Warning|Yields):$")

# Modules whose import has side effects are read, too.
MODULES = sorted(module.name for module in pkgutil.walk_packages(scrapy_bloom.__path__, "scrapy_bloom."))
CLASSES = [*(getattr(scrapy_bloom, name) for name in sorted(scrapy_bloom.__all__)), BloomSettings]
# Scrapy builds these and calls their methods: the example is in the settings, and stands at the class.
CALLED_BY_SCRAPY = {"Addon", "BloomRFPDupeFilter", "BloomScheduler", "LeasedStartUrls", "RedisPipeline"}


def of_this_package(thing: object) -> bool:
    """Return whether an object is defined in this package."""
    return str(getattr(thing, "__module__", "")).startswith("scrapy_bloom")


def members(cls: type) -> Iterator[tuple[str, FunctionType, bool]]:
    """Yield a class's public methods and properties, without overrides, and whether each is a property."""
    for i, base in enumerate(cls.__mro__):
        above = [other for other in cls.__mro__[i + 1 :] if of_this_package(other)]
        for name, member in vars(base).items():
            if any(name in vars(other) for other in above):
                continue
            is_property = isinstance(member, property)
            function = member.fget if is_property else inspect.unwrap(getattr(member, "__func__", member))
            if not name.startswith("_") and inspect.isfunction(function) and of_this_package(base):
                yield f"{base.__qualname__}.{name}", function, is_property


MEMBERS = {name: (function, is_property) for cls in CLASSES for name, function, is_property in members(cls)}


def arguments(function: FunctionType) -> set[str]:
    """Return the names of a function's parameters without `self` and variadic ones."""
    handed_on = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return {parameter.name for parameter in parameters if parameter.kind not in handed_on}


def raised(function: FunctionType) -> set[str]:
    """Return the classes, or the expressions, that a function's own body raises."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    raises = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    return {ast.unparse(exc.func if isinstance(exc, ast.Call) else exc) for exc in raises}


def entries(section: str) -> set[str]:
    """Return the names of a section's entries, without `**options`."""
    return {line.partition(":")[0] for line in section.splitlines() if line and not line.startswith((" ", "*"))}


def sections_of(docstring: str | None) -> dict[str, str]:
    """Return the sections of a docstring by heading; the first one's heading is empty."""
    parts, heading = {"": ""}, ""
    for line in inspect.cleandoc(docstring or "").splitlines():
        if match := SECTIONS.match(line):
            heading = match[1]
        else:
            parts[heading] = f"{parts.get(heading, '')}{line}\n"
    return {heading: inspect.cleandoc(part) for heading, part in parts.items()}


@pytest.fixture
def client(valkey: Server) -> Iterator[redis.Redis]:
    """A client of a database that only examples use."""
    with valkey.client(db=11) as client:
        yield client
        assert client.dbsize() == 0, "an example leaves keys behind"


@pytest.mark.parametrize("name", ["scrapy_bloom", *MODULES])
def test_examples(name: str, client: redis.Redis) -> None:
    """Each example prints its output, given the filters, `client` and `Settings`."""
    module = importlib.import_module(name)
    public = {cls.__name__: cls for cls in CLASSES}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder().find(module, extraglobs={**public, "client": client, "Settings": Settings}):
        report: list[str] = []
        assert not runner.run(test, out=report.append).failed, "".join(report)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_public_classes(cls: type) -> None:
    """A public class has an example, and `Args:` or, for a dataclass, `Attributes:`."""
    sections = sections_of(vars(cls)["__doc__"])
    assert ">>>" in sections.get("Example", ""), "no example"
    if dataclasses.is_dataclass(cls):
        assert entries(sections.get("Attributes", "")) == {field.name for field in dataclasses.fields(cls)}
    elif "__init__" in vars(cls):
        assert entries(sections.get("Args", "")) == arguments(vars(cls)["__init__"])


@pytest.mark.parametrize("name", MEMBERS)
def test_public_members(name: str) -> None:
    """A public method has `Args:`, `Returns:` and `Raises:` that match its code; each member has an example.

    Dunder methods need no docstring. `Raises:` has at least the errors of the method's own body. Methods that Scrapy
    calls have their example at the class.
    """
    function, is_property = MEMBERS[name]
    sections = sections_of(inspect.getdoc(function))
    if name.partition(".")[0] not in CALLED_BY_SCRAPY:
        assert ">>>" in sections.get("Example", "")
    if is_property:
        return
    assert entries(sections.get("Args", "")) == arguments(function)
    returns = inspect.signature(function).return_annotation
    assert ("Returns" in sections) == (returns not in (None, "None"))
    missing = raised(function) - entries(sections.get("Raises", ""))
    assert not {error for error in missing if error[0].isupper()}
    assert not raised(function) or "Raises" in sections
