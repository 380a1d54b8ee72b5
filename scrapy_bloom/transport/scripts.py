"""Load Lua scripts from their files, and run them by hash (EVALSHA) once a server knows their text.

EVAL carries the text of a script, 0.2 to 3.5 KB, and the server hashes all of it at each call.
"""

from functools import cache
from hashlib import sha1
from importlib.resources import files

from redis.exceptions import NoPermissionError, NoScriptError

from scrapy_bloom.transport.commands import Argument, Command


@cache
def load_script(package: str, *names: str) -> str:
    """Return scripts from the `lua` folder of a package, joined, without comments and indentation."""
    folder = files(package) / "lua"
    lines = [line for name in names for line in (folder / f"{name}.lua").read_text(encoding="utf-8").splitlines()]
    return "\n".join(line for line in map(str.strip, lines) if line and not line.startswith("--"))


class KnownScripts:
    """The scripts that a transport has sent: the first call is an EVAL, all others are EVALSHAs.

    A server may have lost a script: SCRIPT FLUSH, a restart, a failover, another node of a cluster. It then refuses
    the EVALSHA and executes nothing, so that the transport can send the EVAL, which loads the script again. Commands
    that follow in the same round trip would overtake that EVAL. Only the last command of a round trip goes by hash.
    """

    def __init__(self) -> None:
        self._sent: set[Argument] = set()
        self._is_permitted = True

    def by_hash(self, command: Command) -> Command | None:
        """Return the EVALSHA in place of an EVAL, or None if the command must be sent as it is."""
        # A BITFIELD, which is sent most, is of a class of its own.
        if type(command) is not Command or command.arguments[0] != "EVAL" or not self._is_permitted:
            return None
        _, script, *others = command.arguments
        if script not in self._sent:
            self._sent.add(script)
            return None
        return Command("EVALSHA", _hash(script), *others)

    def was_refused(self, error: object) -> bool:
        """Return whether a server refused an EVALSHA as such, and executed nothing."""
        # An ACL may allow EVAL alone. Inside a script the error names the command that the script called.
        if isinstance(error, NoPermissionError) and "'evalsha'" in str(error):
            self._is_permitted = False
            return True
        return isinstance(error, NoScriptError)


@cache
def _hash(script: Argument) -> str:
    return sha1(str(script).encode(), usedforsecurity=False).hexdigest()
