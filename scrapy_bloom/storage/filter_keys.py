"""The names of a filter's keys and hash fields; they are made here and nowhere else."""

import re

FILTER_FIELD = "filter"
_LAYER_PREFIX = "layer:"
_CREDIT_PREFIX = "credit:"
_REFERENCE_PREFIX = "user:"
# Written by a command of earlier checkouts, and read by none: such a filter still opens and can be cleared.
_RETIRED_PREFIX = "merged:"
# It says what fills a filter that is not to be used before that is done.
UNFINISHED_FIELD = "unfinished"
# How far an import is that fills a filter from a SET.
IMPORT_FIELD = "import"


def layer_field(layer: int) -> str:
    """Return the field of the filter's hash that describes a layer."""
    return f"{_LAYER_PREFIX}{layer}"


def layer_of_field(field: str) -> int | None:
    """Return the layer that a field describes, or None for a field that describes none."""
    number = field.removeprefix(_LAYER_PREFIX)
    return int(number) if number != field and number.isdecimal() else None


def credit_field(layer: int, epoch: int) -> str:
    """Return the field of the filter's hash that counts the room of a layer that was given away.

    The epoch is a part of the name: what is asked of a filter that was replaced finds no counter.
    """
    return f"{_CREDIT_PREFIX}{layer}:{epoch}"


def reference_field(user: str) -> str:
    """Return the field of the filter's hash that says that somebody uses the filter."""
    return f"{_REFERENCE_PREFIX}{user}"


def is_field(field: str) -> bool:
    """Return whether a field of a hash is one of a filter's."""
    is_plain = field in (FILTER_FIELD, UNFINISHED_FIELD, IMPORT_FIELD)
    is_own = is_plain or layer_of_field(field) is not None or is_credit_field(field)
    return is_own or field.startswith((_REFERENCE_PREFIX, _RETIRED_PREFIX))


def is_credit_field(field: str) -> bool:
    """Return whether a field counts the room of a layer."""
    return field.startswith(_CREDIT_PREFIX)


def shard_key(key: str, layer: int, shard: int) -> str:
    """Return the key of the string that holds one shard."""
    return f"{key}:{layer}:{shard}"


def is_key_of(filter_key: str, key: str) -> bool:
    """Return whether a key is that of a filter's hash, or of one of its shards."""
    return key == filter_key or re.fullmatch(rf"{re.escape(filter_key)}:\d+:\d+", key) is not None
