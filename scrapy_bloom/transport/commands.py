"""Redis commands and their encoding in RESP, the protocol of Redis connections."""

from collections.abc import Sequence
from typing import Any

import hiredis

Argument = str | bytes | float

_pack: Any = hiredis.pack_command  # its types are of tuples of one argument


class Command:
    """A command name and its arguments."""

    __slots__ = ("_arguments",)

    is_binary = False

    def __init__(self, *arguments: Argument) -> None:
        self._arguments = arguments

    @property
    def arguments(self) -> Sequence[Argument]:
        """The name of the command, then its arguments."""
        return self._arguments

    def pack(self) -> bytes:
        """Return the command in RESP."""
        packed: bytes = _pack(self._arguments)
        return packed

    def __repr__(self) -> str:
        return f"Command{self.arguments}"


class BinaryCommand(Command):
    """A command whose reply is bytes even if the client decodes replies."""

    __slots__ = ()

    is_binary = True
