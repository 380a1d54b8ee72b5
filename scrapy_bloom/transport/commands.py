"""Redis commands, and their bytes in RESP, the protocol of Redis connections."""

from collections.abc import Sequence
from typing import Any

import hiredis

Argument = str | bytes | float

_pack: Any = hiredis.pack_command  # its types are of tuples of one argument


class Command:
    """A command and its arguments, the name of the command first."""

    __slots__ = ("_arguments",)

    is_binary = False

    def __init__(self, *arguments: Argument) -> None:
        self._arguments = arguments

    @property
    def arguments(self) -> Sequence[Argument]:
        """The name of the command and what follows it."""
        return self._arguments

    def pack(self) -> bytes:
        """Return the command as it goes over a connection."""
        packed: bytes = _pack(self._arguments)
        return packed

    def __repr__(self) -> str:
        return f"Command{self.arguments}"


class BinaryCommand(Command):
    """A command whose reply is bytes, also from a client that decodes replies."""

    __slots__ = ()

    is_binary = True
