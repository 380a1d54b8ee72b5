"""The errors and warnings of an import, each with the action to take."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from scrapy_bloom._format import as_size, as_text, plural
from scrapy_bloom.cli.importing.import_state import ImportKeys, ImportState
from scrapy_bloom.cli.planning import layers_for
from scrapy_bloom.errors import BloomError, ConfigError, MismatchError, RefusedError, WrongTypeError
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import Command

logger = logging.getLogger(__name__)

ACTION = "import"
SCHEME_OF_SETS = "scrapy-redis"


class GoneError(WrongTypeError):
    """Raised when the SET was deleted while it was copied."""

    def __init__(self, at: ImportKeys) -> None:
        super().__init__(
            f"the SET at {at.key!r} was deleted while it was copied, as a crawl without SCHEDULER_PERSIST does at its "
            "end: the copy is deleted, too, and there is nothing left to import"
        )


class TakenOverError(RefusedError):
    """Raised when another process has taken over the import."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"another `scrapy bloom import` of {key!r} has taken over, or the filter was replaced: wait for it, and "
            "run this again to see the outcome"
        )


def require_sets_scheme(scheme: str) -> None:
    """Raise a ConfigError if the project's fingerprints are not scrapy-redis's."""
    if scheme != SCHEME_OF_SETS:
        raise ConfigError(
            f"a SET has fingerprints of scrapy-redis, but this project makes those of {scheme!r} and would find none "
            "of them. Remove REQUEST_FINGERPRINTER_CLASS, or the request_fingerprint of a subclass, to keep "
            "scrapy-redis's; or start over"
        )


def require_no_set(queue_client: Any, key: str) -> None:
    """Raise a ConfigError if the queue's server has the SET, and the filter is on another server."""
    (kind,) = transport_for(queue_client).execute([Command("TYPE", key)])
    if as_text(kind) == "set":
        raise ConfigError(
            f"BLOOMFILTER_REDIS_URL: the SET at {key!r} is on the queue's server, and an import swaps the SET and the "
            "filter in one step on one server. Run the import with -s BLOOMFILTER_REDIS_URL= and -s "
            "BLOOMFILTER_REDIS_PARAMS= to make the filter there. Then move it: run `scrapy bloom export` with the same "
            "options, and `scrapy bloom restore` without"
        )


def require_one_slot(client: Any, at: ImportKeys) -> None:
    """Raise a ConfigError if a cluster has the keys of the import in several slots."""
    if not hasattr(client, "keyslot"):  # only the clients of clusters have it
        return
    if len({client.keyslot(key) for key in at}) > 1:
        raise ConfigError(
            f"SCHEDULER_DUPEFILTER_KEY = {at.key!r}: the unpaired brace puts this key into another cluster slot than "
            f"{at.source_backup!r}, the later key of the SET. Copy the SET to a key without braces, or with one pair, "
            "by RESTORE, and set that key"
        )


def require_import(at: ImportKeys, fields: Mapping[str, str], backup: str) -> None:
    """Raise a WrongTypeError if the filter at the key is not an import's; `backup` is the type of the SET's key."""
    action = fields.get(filter_keys.UNFINISHED_FIELD)
    if action not in (None, ACTION):
        raise WrongTypeError(
            f"`scrapy bloom {action}` is filling the filter at {at.key!r}, or was stopped: finish that first"
        )
    if backup == "set":
        return
    if action is None:
        raise WrongTypeError(
            f"the key {at.key!r} holds a filter already, and there is no SET at {at.source_backup!r}: there is nothing "
            "to import"
        )
    raise WrongTypeError(
        f"the filter at {at.key!r} is incomplete, and its SET is gone from {at.source_backup!r}: restore the SET, or "
        f"delete the filter by `scrapy bloom clear --key {at.key}` and start the crawl over"
    )


def require_same_parameters(found: StoredFilter, parameters: FilterParameters) -> None:
    """Raise a MismatchError if the import was begun with other parameters."""
    differences = parameters.differences(found.parameters)
    if differences:
        raise MismatchError(
            f"the import at {found.key!r} was begun with other parameters: {'; '.join(map(str, differences))}. Resume "
            f"it with the stored ones, or delete the copy by `scrapy bloom clear --key {found.key} --yes` and run it "
            "again"
        )


def occupied(at: ImportKeys, kind: str) -> WrongTypeError:
    """Return the error of data at the backup key of the SET."""
    return WrongTypeError(
        f"the key {at.source_backup!r}, to which the swap moves the SET, holds a {kind}: rename or delete that"
    )


def nothing_to_import(at: ImportKeys, backup: str) -> WrongTypeError:
    """Return the error of an empty key; `backup` is the type of the SET's key."""
    if backup == "set":
        return WrongTypeError(
            f"there is nothing at {at.key!r}: the imported filter was deleted, as a crawl without SCHEDULER_PERSIST "
            f"does at its end. The SET is at {at.source_backup!r}: RENAME it to {at.key!r}, and run this again"
        )
    return WrongTypeError(
        f"there is no SET at {at.key!r}, and no import to resume at {at.source_backup!r}: no crawl has used this key, "
        "or its crawl has deleted it at its end (SCHEDULER_PERSIST = False). Check the key and the server"
    )


def source_gone(at: ImportKeys, key: str, kind: str) -> BloomError:
    """Return the error of a SET that disappeared; `kind` is the present type of its key."""
    if key == at.key:
        return TakenOverError(key) if kind == "hash" else GoneError(at)
    return WrongTypeError(
        f"the SET at {at.source_backup!r} was deleted while the filter at {at.key!r} was checked: restore the SET, and "
        "run this again"
    )


def state_of(found: StoredFilter) -> ImportState | None:
    """Return the state of the import that fills a filter, or None: no import does."""
    text = found.fields.get(filter_keys.IMPORT_FIELD)
    return None if text is None else ImportState.from_json(found.key, text)


def require_own(at: ImportKeys, found: StoredFilter) -> ImportState:
    """Return the state of the filter at the staging key. Raises a WrongTypeError unless it is an import of this SET."""
    state, key = state_of(found), filter_keys.prefix_of(found.key, found.fields)
    if state is not None and key == at.key:
        return state
    owner = "a filter in use" if state is None else f"the import of {key!r}"
    raise WrongTypeError(
        f"the key {at.staging!r}, where an import creates its filter, holds {owner}: import to another key"
    )


def require_fingerprints(key: str, others: Sequence[bytes]) -> None:
    """Raise a WrongTypeError if a SET has members `others` that are not fingerprints."""
    if others:
        raise WrongTypeError(
            f"the SET at {key!r} has the member {others[0].decode(errors='replace')!r}, which is not a "
            "fingerprint of scrapy-redis (40 hexadecimal digits): is it the key of the dupefilter?"
        )


def require_all(at: ImportKeys, are_found: Sequence[bool]) -> None:
    """Raise a WrongTypeError if the filter lacks a member of the SET."""
    if not all(are_found):
        raise WrongTypeError(
            f"the filter at {at.key!r} lacks at least {plural(are_found.count(False), 'member')} of the SET at "
            f"{at.source_backup!r}: it was replaced, lost shards, or its TTL has passed. The SET stays. To import it "
            f"again, delete the filter by `scrapy bloom clear`, RENAME the SET to {at.key!r}, and run this again"
        )


def require_count(at: ImportKeys, members: int, checked: int) -> None:
    """Raise a RefusedError if the scan has missed members of the SET."""
    if checked < members:
        raise RefusedError(
            f"the server returned {checked:,} of {members:,} members of the SET at {at.source_backup!r}: run it again, "
            "to check all of them"
        )


def warn_about_size(at: ImportKeys, members: int, parameters: FilterParameters) -> None:
    """Warn about a SET with more members than the filter's capacity."""
    if members <= parameters.capacity:
        return
    harm = "a filter that cannot grow (BLOOMFILTER_EXPANSION = 0) exceeds its error rate"
    if parameters.expansion:
        layers = layers_for(parameters, members)
        memory_bytes = sum(layer.size.memory_bytes for layer in layers)
        roomy_bytes = FilterParameters(members, parameters.error_rate, parameters.expansion).memory_bytes
        harm = (
            f"the filter needs {plural(len(layers), 'layer')} and {as_size(memory_bytes)}; with enough capacity it "
            f"needs {as_size(roomy_bytes)}"
        )
    logger.warning(
        "BLOOMFILTER_CAPACITY = %s, but the SET at %r has %s members: %s. To change that, stop this, set a capacity "
        "above %s, and delete the copy by `scrapy bloom clear --key %s --yes`",
        f"{parameters.capacity:_}",
        at.key,
        f"{members:,}",
        harm,
        f"{members:_}",
        at.staging,
    )
