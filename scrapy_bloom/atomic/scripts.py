"""Run the Lua scripts of this package: by hash (EVALSHA), and by text (EVAL) where a server does not know them."""

from collections.abc import Sequence
from hashlib import sha1
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import NoPermissionError, NoScriptError

from scrapy_bloom.transport.scripts import load_script

# A reply may hold any bytes, even if the client decodes replies.
_AS_BYTES: dict[str, Any] = {NEVER_DECODE: []}


class Script:
    """A script from the folder `lua`, behind the libraries that it uses.

    Args:
        name: the name of its file.
        libraries: the names of the libraries' files.
    """

    def __init__(self, name: str, *libraries: str) -> None:
        self._text = load_script(__package__, *libraries, name)
        self._hash = sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    def call(self, client: Any, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        """Execute the script once, and return its reply; strings are bytes. Nothing is retried.

        Args:
            client: a `redis.Redis` or `redis.RedisCluster`.
            keys: KEYS of the script, in one slot.
            args: ARGV of the script.

        Returns:
            The script's reply.
        """
        arguments = (len(keys), *keys, *args)
        try:
            return client.execute_command("EVALSHA", self._hash, *arguments, **_AS_BYTES)
        except NoScriptError:
            pass
        except NoPermissionError as error:
            # An ACL may allow EVAL alone. Inside a script the error names the command that the script called.
            if "'evalsha'" not in str(error):
                raise
        return client.execute_command("EVAL", self._text, *arguments, **_AS_BYTES)
