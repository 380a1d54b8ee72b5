"""The names of everything that is stored: keys and hash fields are made here and nowhere else."""

FILTER_FIELD = "filter"
_LAYER_PREFIX = "layer:"
_CREDIT_PREFIX = "credit:"


def layer_field(layer: int) -> str:
    """The field of the filter's hash that describes a layer."""
    return f"{_LAYER_PREFIX}{layer}"


def layer_of_field(field: str) -> int | None:
    """The layer that a field describes; None for a field that describes none."""
    number = field.removeprefix(_LAYER_PREFIX)
    return int(number) if number != field and number.isdecimal() else None


def credit_field(layer: int, epoch: int) -> str:
    """The field of the filter's hash that counts the room of a layer that was given away.

    The epoch is a part of the name: what is asked of a filter that was replaced finds no counter.
    """
    return f"{_CREDIT_PREFIX}{layer}:{epoch}"


def is_field(field: str) -> bool:
    """Whether a field of a hash is one of a filter's."""
    return field == FILTER_FIELD or layer_of_field(field) is not None or is_credit_field(field)


def is_credit_field(field: str) -> bool:
    """Whether a field counts the room of a layer."""
    return field.startswith(_CREDIT_PREFIX)


def shard_key(key: str, layer: int, shard: int) -> str:
    """The key of the string that holds one shard."""
    return f"{key}:{layer}:{shard}"


def held_key(queue: str, worker: str) -> str:
    """The key of the sorted set of requests that a worker holds of a queue."""
    return f"{queue}:held:{worker}"


def unreadable_key(queue: str) -> str:
    """The key of the sorted set of a queue's requests that could not be read, for the next crawl."""
    return f"{queue}:unreadable"


def workers_key(queue: str) -> str:
    """The key of the sorted set of a queue's workers, by the time of their last sign of life."""
    return f"{queue}:workers"


def closing_key(queue: str) -> str:
    """The key of the set of workers that may be about to clear everything."""
    return f"{queue}:closing"


def recovery_key(queue: str, worker: str) -> str:
    """The key that says that a dead worker's requests are being put back."""
    return f"{queue}:recovery:{worker}"
