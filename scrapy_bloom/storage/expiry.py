"""Keys that the server deletes by itself, as memory has it: when that is, and what a deletion takes with it.

Times are Unix times of the server in whole milliseconds.
"""

from scrapy_bloom.storage.base import Memory


def keep_until(memory: Memory, key: str, time: int | None) -> None:
    """Have a key expire at this time, unless it does so later; None: nothing is said of that."""
    if time is not None and (key not in memory.expiries or time > memory.expiries[key]):
        if time <= _milliseconds(memory):
            delete(memory, key)
        else:
            memory.expiries[key] = time


def delete(memory: Memory, key: str) -> bool:
    """Delete a key with its expiry, and return whether it was there."""
    memory.expiries.pop(key, None)
    fields, string = memory.hashes.pop(key, None), memory.strings.pop(key, None)
    return bool(fields) or string is not None


def delete_expired(memory: Memory) -> None:
    """Delete what is over by now."""
    now = _milliseconds(memory)
    for key in [key for key, time in memory.expiries.items() if now > time]:
        delete(memory, key)


def _milliseconds(memory: Memory) -> int:
    return int(memory.now() * 1000)
