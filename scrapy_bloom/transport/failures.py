"""Which errors of a server are transient, which are refusals, and what to do about those."""

import re
from collections.abc import Callable

from redis import exceptions

from scrapy_bloom._names import SETTINGS, Names
from scrapy_bloom.errors import BloomError
from scrapy_bloom.transport.permissions import FILTER_COMMANDS, QUEUE_COMMANDS, as_sentence

# Everything that redis-py raises of a server; RedisClusterException is no RedisError.
FAULTS = (exceptions.RedisError, exceptions.RedisClusterException)
# LOADING is a ConnectionError too; MASTERDOWN and CLUSTERDOWN are ClusterErrors.
TRANSIENT_ERRORS = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
)
# Those of them by which a server says that it did not execute a command.
_NOT_EXECUTED_ERRORS = (
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
)
# The codes by which a server refuses a command before it does anything, and that pass by themselves: in a script, too,
# where a server looks for them before the first write. An EXEC and the scripts of Redis up to 6 say them in their text.
_NOT_NOW = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "READONLY", "TRYAGAIN")
# A client that is one too many is hung up on before it can send anything.
_TOO_MANY_CLIENTS = "max number of clients"

# What to do about an error, with places for the user's names.
_LOGIN = "check the user name and the password {names.login}"
_PERMISSION = (
    f"allow {as_sentence(FILTER_COMMANDS)} on the filter's keys, and with BloomScheduler {as_sentence(QUEUE_COMMANDS)} "
    "on the queue's, its own one and those that begin with it in braces; `scrapy bloom doctor` names what is missing"
)
_MEMORY = "raise the server's maxmemory, or set a smaller {capacity}"
_OLD_SERVER = "it is older than RESP3: set {names.protocol}"
_WRONG_TYPE = "a key that is needed holds something else: use other keys{names.keys}"
_UNKNOWN = "see what it says"

# What stands before the host of a URL; the last @, since one in a password may be there as it is.
_CREDENTIALS = re.compile(r"(?<=://)\S*@")

Matches = Callable[[Exception, str], bool]


def _is(*kinds: type[Exception]) -> Matches:
    return lambda error, _: isinstance(error, kinds)


def _says(*parts: str) -> Matches:
    return lambda _, text: all(part in text for part in parts)


def _carries(*codes: str) -> Matches:
    """Match an error that is one of a server's codes or cites one, behind a colon and perhaps a hyphen."""
    code = re.compile(f": -?(?:{'|'.join(codes)}) ")
    return lambda _, text: code.search(text) is not None


# What to do about an error, by the first row that matches; None: it is transient, and worth waiting for. Authentication
# errors are ConnectionErrors, so that they stand first. A command that a script may not run is an error like any other
# for Valkey and Redis, and told by its text alone.
_CASES: tuple[tuple[Matches, str | None], ...] = (
    (_is(exceptions.AuthenticationError, exceptions.AuthorizationError), _LOGIN),
    (_is(exceptions.NoPermissionError), _PERMISSION),
    (_is(exceptions.OutOfMemoryError), _MEMORY),
    (_carries("OOM"), _MEMORY),
    (_is(*TRANSIENT_ERRORS), None),
    # "UNBLOCKED" is said of a command that was waiting, of which some have been carried out by then.
    (_carries(*_NOT_NOW, "UNBLOCKED"), None),
    (_says(_TOO_MANY_CLIENTS), None),
    (_says("unknown command", "HELLO"), _OLD_SERVER),
    (_says("ACL failure"), _PERMISSION),
    (_says("can't run this command"), _PERMISSION),
    (_says("WRONGTYPE"), _WRONG_TYPE),
)


_REFUSED_BEFOREHAND = (_is(*_NOT_EXECUTED_ERRORS), _carries(*_NOT_NOW), _says(_TOO_MANY_CLIENTS))
_FROM_REPLICA = (
    _is(exceptions.ReadOnlyError, exceptions.MasterDownError, exceptions.BusyLoadingError),
    _carries("READONLY", "MASTERDOWN", "LOADING"),
)


def advice_for(error: Exception, names: Names = SETTINGS) -> str | None:
    """Return what to do about an error that waiting does not change, or None for a transient one."""
    text = describe(error)
    advice = next((advice for matches, advice in _CASES if matches(error, text)), _UNKNOWN)
    return advice and _with_names(advice, names)


def was_not_executed(error: Exception) -> bool:
    """Return whether a server says by this error that it has done nothing of a command."""
    return _matches_any(error, _REFUSED_BEFOREHAND)


def is_from_replica(error: Exception) -> bool:
    """Return whether a server says by this error that it is a replica, or may become one once it has loaded."""
    return _matches_any(error, _FROM_REPLICA)


def _with_names(advice: str, names: Names) -> str:
    return advice.format(names=names, capacity=names.option("capacity"))


def hide_credentials(text: str) -> str:
    """Return a text without what may be a password in a URL that it cites."""
    return _CREDENTIALS.sub("…@", text)


def _matches_any(error: Exception, cases: tuple[Matches, ...]) -> bool:
    text = describe(error)
    return any(matches(error, text) for matches in cases)


def describe(error: Exception) -> str:
    """Return the kind of an error and its text without what may hold a password; of one of ours, its text as it is.

    redis-py puts the command before the text of a pipeline's error. A server puts one that it does not know behind. A
    URL that is cited is told from its host on.
    """
    if isinstance(error, BloomError):
        return str(error)
    text = str(error).rpartition("caused error: ")[2].partition(", with args beginning with")[0]
    return f"{type(error).__name__}: {hide_credentials(text)}"
