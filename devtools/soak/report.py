"""The outcome of each crawl, and their sum. Judges outcomes, and starts no process."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from devtools.soak.plan import Kind, Plan

_SHOWN = 5


@dataclass
class Outcome:
    """The outcome of a crawl: its missed pages, its repeated fetches, and its other complaints.

    `happened` counts the observed faults. `hung` names the workers that did not end, `failed` the workers that ended
    with an error, `left` the remaining keys.
    """

    plan: Plan
    happened: Counter[Kind] = field(default_factory=Counter)
    seconds: float = 0.0
    missed: set[str] = field(default_factory=set)
    twice: int = 0
    hung: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: set[str] = field(default_factory=set)

    @property
    def is_well(self) -> bool:
        """Return whether there is no complaint about the crawl."""
        return not any(self.complaints)

    @property
    def absent(self) -> list[Kind]:
        """The planned faults that did not happen: a crawl without them proves nothing about them."""
        planned = Counter(fault.kind for fault in self.plan.faults)
        return list((planned - self.happened).elements())

    @property
    def complaints(self) -> Iterator[str]:
        """Each complaint about the crawl."""
        for name in ("missed", "hung", "failed", "left", "absent"):
            found: list[str] = sorted(getattr(self, name))
            if found:
                more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
                yield f"{name} {len(found)}: {', '.join(found[:_SHOWN])}{more}"

    def __str__(self) -> str:
        end = "; ".join(self.complaints) or "all fetched"
        return f"{self.plan}: {end}, {self.twice} fetched twice, {self.seconds:.1f} s"


class Report:
    """The sum of many outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.kept: list[Path] = []

    @property
    def is_well(self) -> bool:
        """Return whether there were crawls, and all of them succeeded."""
        return bool(self.outcomes) and all(outcome.is_well for outcome in self.outcomes)

    def __str__(self) -> str:
        happened: Counter[Kind] = sum((outcome.happened for outcome in self.outcomes), Counter())
        rows = {
            "crawls": len(self.outcomes),
            "crawls not well": sum(not outcome.is_well for outcome in self.outcomes),
            "pages": sum(outcome.plan.pages for outcome in self.outcomes),
            "pages missed": sum(len(outcome.missed) for outcome in self.outcomes),
            "workers hung": sum(len(outcome.hung) for outcome in self.outcomes),
            "workers failed": sum(len(outcome.failed) for outcome in self.outcomes),
            "keys left": sum(len(outcome.left) for outcome in self.outcomes),
            "faults absent": sum(len(outcome.absent) for outcome in self.outcomes),
            "pages fetched twice": sum(outcome.twice for outcome in self.outcomes),
            "twice for each SIGKILL": self._twice_for_each_kill(),
            "faults": ", ".join(f"{kind} {times}" for kind, times in sorted(happened.items())) or "none",
        }
        lines = [f"{name:<24}{value}" for name, value in rows.items()]
        return "\n".join([*lines, *(f"{'logs kept':<24}{path}" for path in self.kept)])

    def _twice_for_each_kill(self) -> str:
        """Return the mean over the crawls with no other faults."""
        of_kills = [outcome for outcome in self.outcomes if set(outcome.happened) == {Kind.SIGKILL}]
        kills = sum(outcome.happened[Kind.SIGKILL] for outcome in of_kills)
        twice = sum(outcome.twice for outcome in of_kills)
        return f"{twice / kills:.1f}, {kills} times in crawls with no other faults" if kills else "-"
