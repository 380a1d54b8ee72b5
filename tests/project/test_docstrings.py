"""Docstrings: their examples run, and each public class has one. Ruff checks their sections."""

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest
import redis
from scrapy.settings import Settings

import scrapy_bloom
from scrapy_bloom.settings import BloomSettings
from tests.support.servers import Server

# Modules whose import has side effects are read, too.
MODULES = sorted(module.name for module in pkgutil.walk_packages(scrapy_bloom.__path__, "scrapy_bloom."))
CLASSES = [*(getattr(scrapy_bloom, name) for name in sorted(vars(scrapy_bloom)["__all__"])), BloomSettings]


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
    """A public class has an example."""
    assert ">>>" in (vars(cls)["__doc__"] or "")
