"""The file of results, a part of which can be measured anew while the others stay."""

import re

_HEADING = re.compile(r"^## (?=\w+$)", re.MULTILINE)


def merged(before: str, now: str) -> str:
    """The results of before with the parts that there are now in the place of those with their names, new ones last.

    What stands above the first part stays, since it says how the others were measured.
    """
    head, *old = _HEADING.split(before)
    _, *new = _HEADING.split(now)
    parts = {_name(part): part for part in old}
    parts.update({_name(part): part for part in new})
    return head + "\n\n".join(f"## {part.rstrip()}\n" for part in parts.values())


def _name(part: str) -> str:
    return part.partition("\n")[0]
