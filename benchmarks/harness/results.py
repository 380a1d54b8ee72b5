"""The file of results, whose parts can be replaced one by one."""

import re

_HEADING = re.compile(r"^## (?=\w+$)", re.MULTILINE)


def merged(before: str, now: str) -> str:
    """Return the results `before` with the parts of `now` replaced, and new parts last.

    The text above the first part stays, since it describes the other measurements.
    """
    head, *old = _HEADING.split(before)
    _, *new = _HEADING.split(now)
    parts = {_name(part): part for part in old}
    parts.update({_name(part): part for part in new})
    return head + "\n\n".join(f"## {part.rstrip()}\n" for part in parts.values())


def _name(part: str) -> str:
    return part.partition("\n")[0]
