"""The start URLs of a list in this process: a twin of the scripts on a server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from scrapy_bloom.transport.commands import Argument
from scrapy_bloom.transport.scripts import load_script

SCRIPTS = ("lease_start", "release_start", "bury_start")


def text_of(script: str) -> str:
    """Return the text of a script of start URLs."""
    return load_script("scrapy_bloom.start_urls", "start_key", script)


class StartScript(NamedTuple):
    """A script of start URLs, with its arguments."""

    script: str
    arguments: tuple[Argument, ...]

    @classmethod
    def of(cls, text: str, arguments: Sequence[Argument]) -> Self:
        """Return the script that has a text."""
        return cls(next(name for name in SCRIPTS if text_of(name) == text), tuple(arguments))


@dataclass
class StartMemory:
    """The list at a start key, the hash of leased start URLs, and the list of dead letters."""

    waiting: list[bytes] = field(default_factory=list)
    leased: dict[str, bytes] = field(default_factory=dict)
    dead: list[bytes] = field(default_factory=list)

    def copy(self) -> Self:
        """Return an independent copy."""
        return replace(self, waiting=[*self.waiting], leased={**self.leased}, dead=[*self.dead])

    def apply(self, operation: StartScript) -> list[Any]:
        """Execute a script."""
        effects: dict[str, Callable[..., list[Any]]]
        effects = {"lease_start": self._lease, "release_start": self._release, "bury_start": self._bury}
        return effects[operation.script](*operation.arguments)

    def _lease(self, kind: str, want: int, number: int, holder: str) -> list[Any]:
        assert kind == "list"
        data, self.waiting = self.waiting[:want], self.waiting[want:]
        self.leased.update({f"{number + place}{holder}": datum for place, datum in enumerate(data)})
        return [b"ok", data]

    def _release(self, kind: str, *fields: str) -> list[Any]:
        assert kind == "list"
        given = [self.leased.pop(name) for name in fields if name in self.leased]
        self.waiting = given + self.waiting
        return [b"ok", len(given)]

    def _bury(self, *fields: str) -> list[Any]:
        self.dead += [self.leased.pop(name) for name in fields if name in self.leased]
        return [b"ok"]
