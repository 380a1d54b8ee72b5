"""The names of a queue's keys; they are made here and nowhere else."""


def leases_key(queue: str, worker: str) -> str:
    """Return the key of the sorted set of requests that a worker holds of a queue."""
    return f"{queue}:leases:{worker}"


def dead_letter_key(queue: str) -> str:
    """Return the key of the sorted set of a queue's requests that could not be read, for the next crawl."""
    return f"{queue}:dead-letter"


def workers_key(queue: str) -> str:
    """Return the key of the sorted set of a queue's workers, by the time of their last sign of life."""
    return f"{queue}:workers"


def closing_key(queue: str) -> str:
    """Return the key of the set of workers that may be about to clear everything."""
    return f"{queue}:closing"


def recovery_key(queue: str, worker: str) -> str:
    """Return the key that says that a dead worker's requests are being put back."""
    return f"{queue}:recovery:{worker}"


def is_key_of(queue: str, key: str) -> bool:
    """Return whether a key is the queue, or one of those that its workers make beside it."""
    single = (queue, dead_letter_key(queue), workers_key(queue), closing_key(queue))
    return key in single or key.startswith((leases_key(queue, ""), recovery_key(queue, "")))
