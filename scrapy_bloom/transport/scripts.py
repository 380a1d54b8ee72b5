"""Run the Lua scripts of this package: by hash (EVALSHA), and by text (EVAL) where a server does not know them."""

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import NoPermissionError, NoScriptError

from scrapy_bloom.transport.connect import drop_connections
from scrapy_bloom.transport.failures import is_from_replica

# A reply may hold any bytes, even if the client decodes replies.
_AS_BYTES: dict[str, Any] = {NEVER_DECODE: []}
# The libraries of a script that uses a filter.
FILTER = ("block", "filter")


class Script:
    """A script from the folder `lua`, behind the libraries that it uses.

    Args:
        name: the name of its file.
        libraries: the names of the libraries' files.

    Attributes:
        text: the text of all, without comments.
    """

    def __init__(self, name: str, *libraries: str) -> None:
        self.text = "\n".join(map(_lines_of, (*libraries, name)))
        self._hash = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def call(self, client: Any, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        """Execute the script once, and return its reply; strings are bytes. Nothing is retried.

        Args:
            client: a `redis.Redis`, a `redis.RedisCluster` or a `HeldConnection`.
            keys: KEYS of the script, in one slot.
            args: ARGV of the script.

        Returns:
            The script's reply.
        """
        arguments = (len(keys), *keys, *args)
        try:
            try:
                return client.execute_command("EVALSHA", self._hash, *arguments, **_AS_BYTES)
            except NoScriptError:
                pass
            except NoPermissionError as error:
                # An ACL may allow EVAL alone. Inside a script the error names the command that the script called.
                if "'evalsha'" not in str(error):
                    raise
            return client.execute_command("EVAL", self.text, *arguments, **_AS_BYTES)
        except BaseException as error:
            # Behind a load balancer or a name only a new connection leads to the new master. After Ctrl-C the next call
            # could take this one's reply for its own.
            if not isinstance(error, Exception) or is_from_replica(error):
                drop_connections(client)
            raise


def _lines_of(name: str) -> str:
    """Return a script without comments and indentation."""
    text = (files("scrapy_bloom") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    return "\n".join(line for line in map(str.strip, text.splitlines()) if line and not line.startswith("--"))
