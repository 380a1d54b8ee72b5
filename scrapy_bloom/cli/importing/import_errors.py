"""The reasons for which an import is refused or ends, each with what to do about it."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from scrapy_bloom._format import as_size
from scrapy_bloom.cli.importing.import_state import ImportKeys, ImportState
from scrapy_bloom.errors import BloomError, ConfigError, MismatchError, RefusedError, WrongTypeError
from scrapy_bloom.filter.layer import NO_IDENTITY
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.storage import filter_keys

logger = logging.getLogger(__name__)

ACTION = "import"
SCHEME_OF_SETS = "scrapy-redis"


class GoneError(WrongTypeError):
    """Raised when the SET was deleted while it was copied."""

    def __init__(self, at: ImportKeys) -> None:
        super().__init__(
            f"the SET at {at.key!r} was deleted while it was copied, as a crawl without SCHEDULER_PERSIST does at its "
            "end: what was copied is deleted too, and nothing is left to import"
        )


class TakenOverError(RefusedError):
    """Raised in a process whose import another one has taken over."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"another `scrapy bloom import` of {key!r} has taken this one over, or the filter was replaced: let that "
            "end, and run it again to see what came of it"
        )


def refuse_other_scheme(scheme: str) -> None:
    """Refuse a SET where requests get other fingerprints than scrapy-redis's."""
    if scheme != SCHEME_OF_SETS:
        raise ConfigError(
            f"a SET has fingerprints of scrapy-redis, and the requests of this project get those of {scheme!r}: none "
            "would be found again. Remove REQUEST_FINGERPRINTER_CLASS, or the request_fingerprint of a subclass, to "
            "keep scrapy-redis's; or begin anew"
        )


def refuse_other_slots(client: Any, at: ImportKeys) -> None:
    """Refuse a key in a cluster which has the other keys elsewhere: it moves nothing from one node to another."""
    if not hasattr(client, "keyslot"):  # what a cluster's client has and no other
        return
    if len({client.keyslot(key) for key in (*at, filter_keys.shard_key(at.key, 0, 0))}) > 1:
        raise ConfigError(
            f"SCHEDULER_DUPEFILTER_KEY = {at.key!r}: a cluster has this key elsewhere than {at.aside!r}, so that they "
            "cannot change places in one step. Copy the SET to a name with a part in braces, such as "
            f"'{{{at.key}}}', with COPY or RESTORE, and set that as the key"
        )


def refuse_filter(at: ImportKeys, fields: Mapping[str, str], aside: str) -> None:
    """Refuse a filter that no import fills, and that no SET belongs to."""
    by = fields.get(filter_keys.UNFINISHED_FIELD)
    if by not in (None, ACTION):
        raise WrongTypeError(f"`scrapy bloom {by}` is filling the filter at {at.key!r}, or was stopped: end that first")
    if aside == "set":
        return
    if by is None:
        raise WrongTypeError(
            f"the key {at.key!r} holds a filter already, and there is no SET at {at.aside!r} that would belong to it: "
            "there is nothing to import"
        )
    raise WrongTypeError(
        f"the filter at {at.key!r} is not complete, and the SET that it is made of is gone from {at.aside!r}: put that "
        f"back, or delete the filter by `scrapy bloom clear --key {at.key}` and begin the crawl anew"
    )


def refuse_other_parameters(found: StoredFilter, parameters: FilterParameters) -> None:
    """Refuse to go on with an import that was begun with other parameters."""
    differences = parameters.differences(found.parameters)
    if differences:
        raise MismatchError(
            f"the import at {found.key!r} was begun with other parameters: {'; '.join(map(str, differences))}. Go on "
            f"with the stored ones, or drop what was done by `scrapy bloom clear --key {found.key} --yes` and run it "
            "again"
        )


def occupied(at: ImportKeys, kind: str) -> WrongTypeError:
    """Return the error of a key at which something is where the SET is to go."""
    return WrongTypeError(
        f"the key {at.aside!r}, where the SET goes when the filter takes its key, holds a {kind}: rename or delete that"
    )


def nothing(at: ImportKeys, aside: str) -> WrongTypeError:
    """Return the error of a key at which nothing is."""
    if aside == "set":
        return WrongTypeError(
            f"there is nothing at {at.key!r}: the filter that was made there was deleted, as a crawl without "
            f"SCHEDULER_PERSIST does at its end. The SET is at {at.aside!r}: RENAME it to {at.key!r}, and run this "
            "again"
        )
    return WrongTypeError(
        f"there is no SET at {at.key!r}, and no import to go on with at {at.aside!r}: nothing was ever crawled with "
        "this key, or its crawl has deleted it at its end (SCHEDULER_PERSIST = False). Check the key and the server"
    )


def gone_while_read(at: ImportKeys, key: str, kind: str) -> BloomError:
    """Return the error of a SET at whose key something else is now."""
    if key == at.key:
        return TakenOverError(key) if kind == "hash" else GoneError(at)
    return WrongTypeError(
        f"the SET at {at.aside!r} was deleted while the filter at {at.key!r} was checked against it: put it back, and "
        "run this again"
    )


def state_of(found: StoredFilter) -> ImportState | None:
    """Return the state of the import that fills a filter; None for what an import has left that was taken over.

    Raises:
        WrongTypeError: it is somebody's filter.
    """
    key, text = found.key, found.fields.get(filter_keys.IMPORT_FIELD)
    if text is not None:
        return ImportState.from_json(key, text)
    if found.users or found.unfinished not in (None, ACTION):
        raise WrongTypeError(
            f"the key {key!r}, where an import makes the filter, holds one that is in use: import into another key"
        )
    return None


def require_fingerprints(key: str, others: Sequence[bytes]) -> None:
    """Refuse a SET with members that are no fingerprints."""
    if others:
        raise WrongTypeError(
            f"the SET at {key!r} has the member {others[0].decode(errors='replace')!r}, which is no fingerprint of "
            "scrapy-redis, 40 hexadecimal digits: is it the key of the dupefilter?"
        )


def require_all(at: ImportKeys, answers: Sequence[bool]) -> None:
    """End an import whose filter does not know what was just added to it."""
    if not all(answers):
        raise WrongTypeError(
            f"the filter at {at.key!r} does not hold {answers.count(False):,} members of the SET at {at.aside!r}, or "
            "more. Another filter is there since, its shards were lost, or its time to live has passed. The SET stays. "
            "To move it in anew, delete the filter by `scrapy bloom clear`, RENAME the SET to "
            f"{at.key!r}, and run this again"
        )


def require_count(at: ImportKeys, members: int, checked: int) -> None:
    """End an import in which the server did not show every member of the SET."""
    if checked < members:
        raise RefusedError(
            f"the server showed {checked:,} of {members:,} members of the SET at {at.aside!r}: run it again, which "
            "checks them anew"
        )


def warn_of_size(key: str, members: int, parameters: FilterParameters) -> None:
    """Say what it means that a SET has more members than the filter's capacity."""
    if members <= parameters.capacity:
        return
    setting = f"BLOOMFILTER_CAPACITY = {parameters.capacity:_}, and the SET at {key!r} has {members:,} members"
    if not parameters.expansion:
        logger.warning(
            "%s: a filter that may not grow (BLOOMFILTER_EXPANSION = 0) exceeds its error rate. Stop this, set a "
            "capacity above %s, and delete what was done by `scrapy bloom clear --key %s:importing --yes`",
            setting,
            f"{members:_}",
            key,
        )
        return
    layers, memory = _growth(members, parameters)
    logger.warning(
        "%s: the filter takes %d layers and %s, where one of that capacity takes %s. To have that, stop this, set a "
        "capacity above %s, and delete what was done by `scrapy bloom clear --key %s:importing --yes`",
        setting,
        layers,
        as_size(memory),
        as_size(FilterParameters(members, parameters.error_rate, parameters.expansion).memory_bytes),
        f"{members:_}",
        key,
    )


def _growth(members: int, parameters: FilterParameters) -> tuple[int, int]:
    """Return how many layers so many members take, and their bytes."""
    layer = parameters.first_layer("", NO_IDENTITY, 0, 0.0)
    held, memory, bound = layer.max_items, layer.size.memory_bytes, layer.error_bound(layer.max_items)
    while held < members:
        layer = parameters.next_layer(layer, bound, 0.0)
        held, memory = held + layer.max_items, memory + layer.size.memory_bytes
        bound += layer.error_bound(layer.max_items)
    return layer.index + 1, memory
