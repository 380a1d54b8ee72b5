"""Redis commands and their encoding in RESP, the protocol of Redis connections."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import hiredis

Argument = str | bytes | float

_SCRIPTS = ("EVAL", "EVALSHA")

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

    @property
    def key(self) -> Argument | None:
        """The key that decides which node of a cluster executes the command, or None if any node may.

        All keys of a command are in one slot, so the first one decides.
        """
        arguments = self.arguments
        if arguments[0] in _SCRIPTS:
            return arguments[3] if arguments[2] else None
        return arguments[1] if len(arguments) > 1 else None

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


class Failure(NamedTuple):
    """Stands for the reply to a command that failed.

    Attributes:
        error: the server's error, or the fault of the connection.
        is_in_doubt: the command may have been executed.
    """

    error: Exception
    is_in_doubt: bool
