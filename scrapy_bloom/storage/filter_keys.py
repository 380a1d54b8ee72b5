"""The names of a filter's keys and hash fields; no other module spells them."""

import re

FILTER_FIELD = "filter"
_LAYER_PREFIX = "layer:"
_CREDIT_PREFIX = "credit:"
_REFERENCE_PREFIX = "user:"
# Written by a retired command. A filter with such a field still opens, and can be cleared.
_RETIRED_PREFIX = "merged:"
# Names the command that fills an unfinished filter. Workers refuse the filter until it is done.
UNFINISHED_FIELD = "unfinished"
# The progress of an import from a SET.
IMPORT_FIELD = "import"


def layer_field(layer: int) -> str:
    """Return the field that describes a layer."""
    return f"{_LAYER_PREFIX}{layer}"


def layer_of_field(field: str) -> int | None:
    """Return the layer that a field describes, or None for other fields."""
    number = field.removeprefix(_LAYER_PREFIX)
    return int(number) if number != field and number.isdecimal() else None


def credit_field(layer: int, epoch: int) -> str:
    """Return the field that counts the granted room of a layer.

    The epoch is part of the name: a late request for the credit of a replaced filter finds no
    counter.
    """
    return f"{_CREDIT_PREFIX}{layer}:{epoch}"


def reference_field(name: str) -> str:
    """Return the field of a reference to the filter."""
    return f"{_REFERENCE_PREFIX}{name}"


def is_field(field: str) -> bool:
    """Return whether a hash with this field may be a filter's."""
    is_plain = field in (FILTER_FIELD, UNFINISHED_FIELD, IMPORT_FIELD)
    is_own = is_plain or layer_of_field(field) is not None or is_credit_field(field)
    return is_own or field.startswith((_REFERENCE_PREFIX, _RETIRED_PREFIX))


def is_credit_field(field: str) -> bool:
    """Return whether a field counts the granted room of a layer."""
    return field.startswith(_CREDIT_PREFIX)


def shard_key(key: str, layer: int, shard: int) -> str:
    """Return the key of a shard."""
    return f"{key}:{layer}:{shard}"


def is_key_of(filter_key: str, key: str) -> bool:
    """Return whether a key is that of a filter's hash or of one of its shards."""
    return key == filter_key or re.fullmatch(rf"{re.escape(filter_key)}:\d+:\d+", key) is not None
