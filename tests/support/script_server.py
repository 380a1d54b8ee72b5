"""A server in memory that executes Lua scripts.

The Lua is the real one: version 5.1, as in Redis, with `redis.call` alone, and without the libraries that servers add.
The commands are those of `script_commands`. A script returns numbers, strings and lists. An error lacks the place in
the script that a server adds, which each version of Redis and Valkey words differently.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lupa.lua51 import LuaRuntime
from redis.exceptions import ResponseError

from tests.support.script_commands import COMMANDS, CommandError, Commands, Status, formatted

Argument = bytes | str | int | float
# Lists of more elements are passed to Lua as tables, since it takes about 8,000 arguments.
_MOST_ARGUMENTS = 5000


class Evaluation(NamedTuple):
    """A script that was executed.

    Attributes:
        text: its text.
        keys: its keys.
        args: its arguments.
        time: the Unix time of the server in microseconds.
        reply: its reply, or its error.
    """

    text: str
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]
    time: int
    reply: Any


class ScriptServer(Commands):
    """A server whose clock stands still.

    Args:
        time: Unix time in microseconds.
        is_recording: whether to record evaluations.

    Attributes:
        time: the clock, which the test sets.
        recorded: all evaluations, if they are recorded; commands of `call` are not.
    """

    def __init__(self, time: int = 1_700_000_000_000_000, *, is_recording: bool = False) -> None:
        super().__init__(time)
        self._is_recording = is_recording
        self.recorded: tuple[Evaluation, ...] = ()

    def eval(self, text: str, keys: Iterable[Argument] = (), args: Iterable[Argument] = ()) -> Any:
        """Execute a script, and return its reply as redis-py does.

        Raises:
            ResponseError: the script fails, or returns an error.
        """
        self.expire()
        encoded = tuple(map(_encoded, keys)), tuple(map(_encoded, args))
        reply = _LUA.run(self, text, *encoded)
        if self._is_recording:
            self.recorded += (Evaluation(text, *encoded, self.time, reply),)
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def call(self, name: str, *args: Argument) -> Any:
        """Execute a command, and return its reply as a script does.

        Raises:
            ResponseError: the command fails.
        """
        self.expire()
        try:
            reply = execute(self, name.encode(), [*map(_encoded, args)])
        except CommandError as error:
            raise _error(str(error)) from None
        if isinstance(reply, list):
            return [None if each is False else each for each in reply]
        return None if reply is False else reply


def execute(commands: Commands, name: bytes, args: Sequence[bytes]) -> Any:
    """Execute a command."""
    return COMMANDS[name](commands, *args)


class _Lua:
    """The Lua state of all servers of this process."""

    def __init__(self) -> None:
        self._runtime: Any = LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False
        )
        prelude = Path(__file__).with_suffix(".lua").read_bytes()
        self._compile, self._run, self._following = self._runtime.execute(prelude, self._execute)
        self._scripts: dict[str, Any] = {}
        self._commands = Commands(0)

    def run(self, commands: Commands, text: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """Execute a script, and return its reply, or a ResponseError."""
        script = self._scripts.get(text)
        if script is None:
            script = self._scripts[text] = self._compile(text.encode())
        if isinstance(script, bytes):
            return _error(f"ERR Error compiling script (new function): {script.decode()}")
        self._commands = commands
        table = self._runtime.table_from
        passed, size, *reply = self._run(script, table(keys), table(args))
        if passed:
            while len(reply) < size:
                following = self._following(len(reply) + 1)
                reply += following if isinstance(following, tuple) else (following,)
            return _received(iter(reply))
        if isinstance(size, Exception):
            raise size
        return _error(size.decode())

    def _execute(self, name: bytes, *arguments: Any) -> Any:
        """Execute a command of a script."""
        try:
            args = [each if type(each) is bytes else formatted(each) for each in arguments]
            reply = execute(self._commands, name, args)
        except CommandError as error:
            return None, None, str(error).encode()
        if type(reply) is list:
            return (True, *reply) if len(reply) < _MOST_ARGUMENTS else self._runtime.table_from(reply)
        return (None, reply) if type(reply) is Status else reply


def _received(parts: Iterator[Any]) -> Any:
    part = next(parts)
    if part is True:
        return [_received(parts) for _ in range(next(parts))]
    if part is False:
        return None
    return int(part) if isinstance(part, float) else part


def _error(text: str) -> ResponseError:
    return ResponseError(text.removeprefix("ERR ").replace("\n", " "))


def _encoded(argument: Argument) -> bytes:
    """Encode an argument as redis-py does."""
    return argument if isinstance(argument, bytes) else str(argument).encode()


_LUA = _Lua()
