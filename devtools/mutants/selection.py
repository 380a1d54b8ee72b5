"""Select mutants by the history of the checkout: by the files of a change, and by the hash of its commit."""

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
PARENT = "HEAD^"

T = TypeVar("T")


def changed_since(commit: str) -> frozenset[str] | None:
    """Return the files that differ between a commit and HEAD, or None if the clone lacks the commit."""
    if _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") is None:
        return None
    names = _git("diff", "--name-only", "--no-renames", "-z", commit, "HEAD") or ""
    return frozenset(filter(None, names.split("\0")))


def drawn(items: Sequence[T], most: int) -> list[T]:
    """Return at most so many items in their order; the commit's hash is the seed, so each commit draws others."""
    chosen = random.Random(_git("rev-parse", "HEAD")).sample(range(len(items)), min(most, len(items)))
    return [items[index] for index in sorted(chosen)]


def _git(*arguments: str) -> str | None:
    """Return the output of git, or None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None
