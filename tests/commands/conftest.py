"""Actions of `scrapy bloom` in this process, on the server and the key of a test."""

import json
from typing import Any, NamedTuple, Protocol

import pytest
import redis

from tests.support import command


class Said(NamedTuple):
    """The exit code and the output of an action."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """The object of `--json`."""
        found: dict[str, Any] = json.loads(self.out)
        return found


class Say(Protocol):
    """Runs an action on the test's key, or `at` another one, by a client of this `kind`."""

    def __call__(
        self, action: str, *arguments: object, at: str = ..., kind: Any = None, **settings: object
    ) -> Said: ...


@pytest.fixture
def url(client: redis.Redis) -> str:
    """The URL of the test's server."""
    where = client.connection_pool.connection_kwargs
    return f"redis://{where['host']}:{where['port']}"


@pytest.fixture
def say(url: str, key: str, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run an action, and return its exit code and output."""

    def run(action: str, *words: object, at: str = key, kind: Any = None, **settings: object) -> Said:
        params = {"REDIS_PARAMS": {"redis_cls": kind}} if kind else {}
        code = command.call(action, *map(str, words), "--key", at, "--redis-url", url, **params, **settings)
        return Said(code, *capsys.readouterr())

    return run
