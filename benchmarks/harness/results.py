"""The file of results, whose parts can be replaced one by one."""

import re
from collections.abc import Collection

_HEADING = re.compile(r"^## (?=\w+$)", re.MULTILINE)
_HEAD = "# Results\n\n"


def merged(before: str, now: str, names: Collection[str]) -> str:
    """Return the results of these parts in their order: those `before`, replaced by the parts of `now`."""
    parts = [part for text in (before, now) for part in _HEADING.split(text)[1:]]
    by_name = {part.partition("\n")[0]: part.rstrip() for part in parts}
    return _HEAD + "\n".join(f"\n## {by_name[name]}\n" for name in names if name in by_name)
