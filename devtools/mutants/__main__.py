"""Put known mistakes into copies of the project, one in each, and check that the tests fail: `make mutants`.

A mutant is a `[[mutant]]` table in one of the `.toml` files beside this module. It replaces the `old` text, which
occurs exactly once in `file`, by the `new` text. At least one of its `tests` must fail, and `hurts` describes the
consequence for users. The working tree is never touched.

`--touched` tries the mutants that the last commit may have brought to life: it changed their file or their tests.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARENT = "HEAD^"
# Seconds; the tests of one mutant take a few, or hang. A multiple of their time without it is a shorter limit.
LIMIT = 300.0
_GRACE, _SLOWER = 30.0, 10
# Mutants that are tried at a time: their tests wait for servers and crawls more than they compute.
_AT_ONCE = 2
# pytest's exit codes for "all passed" and "some failed"; any other means that they could not run.
_PASSED, _FAILED = 0, 1


class Outcome(StrEnum):
    """The fate of a mutant."""

    KILLED = "killed"
    HUNG = "killed (hung)"
    SURVIVED = "SURVIVED"
    STALE = "STALE"
    BROKEN = "BROKEN"  # its tests cannot even run: a syntax error, not a mutant
    RED = "RED"  # its tests fail without it


@dataclass(frozen=True)
class Mutant:
    """One mistake."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    hurts: str

    @property
    def files(self) -> set[str]:
        """The files that decide whether it is killed: its own and its tests'."""
        return {self.file, *(test.partition("::")[0] for test in self.tests)}

    @property
    def is_stale(self) -> bool:
        """True unless the old text occurs exactly once."""
        path = ROOT / self.file
        return not path.exists() or path.read_text().count(self.old) != 1


def read() -> list[Mutant]:
    """Return all mutants, in the order of their files."""
    tables = [
        table
        for file in sorted(Path(__file__).parent.glob("*.toml"))
        for table in tomllib.loads(file.read_text())["mutant"]
    ]
    return [Mutant(**{**table, "tests": tuple(table["tests"])}) for table in tables]


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the working tree: files tracked by git, and new files that are not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "copy"
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        # The tests of this driver copy the copy.
        subprocess.run(["git", "init", "--quiet", copy], check=True)
        yield copy


def run(copy: Path, tests: Sequence[str], limit: float = LIMIT) -> int | None:
    """Run tests over a copy; return pytest's exit code, or None if it hung.

    The copy comes first in PYTHONPATH, which every process of a test inherits, so that no installed package is tested
    in its place. A hung run is killed with all its processes, and leaves no files.
    """
    scratch = copy.parent / "tmp"
    scratch.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(copy), "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", *tests]
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@cache
def seconds_of(tests: tuple[str, ...]) -> float | None:
    """Return how long these tests take in a copy without any mistake, or None if they fail."""
    with copied() as copy:
        where = [sys.executable, "-c", "import scrapy_bloom; print(scrapy_bloom.__file__)"]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        found = subprocess.run(where, cwd=copy.parent, env=environment, check=True, capture_output=True, text=True)
        if not Path(found.stdout.strip()).is_relative_to(copy):
            sys.exit(f"the tests would import {found.stdout.strip()}, which is not the copy's")
        begin = time.monotonic()
        return time.monotonic() - begin if run(copy, tests) == _PASSED else None


def outcome(mutant: Mutant, limit: float = LIMIT) -> Outcome:
    """Try a mutant whose tests pass without it; tests that take longer than the limit hang."""
    with copied() as copy:
        file = copy / mutant.file
        file.write_text(file.read_text().replace(mutant.old, mutant.new))
        code = run(copy, mutant.tests, limit)
    found = {None: Outcome.HUNG, _FAILED: Outcome.KILLED, _PASSED: Outcome.SURVIVED}
    return found.get(code, Outcome.BROKEN)


def judge(mutant: Mutant) -> Outcome:
    """Try a mutant, and its tests without it."""
    if mutant.is_stale:
        return Outcome.STALE
    seconds = seconds_of(mutant.tests)
    return Outcome.RED if seconds is None else outcome(mutant, min(LIMIT, _GRACE + _SLOWER * seconds))


def touched(mutants: Sequence[Mutant], commit: str) -> Sequence[Mutant]:
    """Return the mutants whose file or tests differ between a commit and HEAD; all if the clone lacks the commit."""
    if _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") is None:
        print(f"{commit}: no such commit in this clone, which may be shallow; any mutant may be drawn")
        return mutants
    changed = set((_git("diff", "--name-only", "--no-renames", "-z", commit, "HEAD") or "").split("\0"))
    found = [mutant for mutant in mutants if mutant.files & changed]
    print(f"{len(found)} of {len(mutants)} mutants have a file or a test that changed since {commit}")
    return found


def drawn(mutants: Sequence[Mutant], most: int) -> list[Mutant]:
    """Return at most so many mutants in their order; the commit's hash is the seed, so each commit draws others."""
    chosen = random.Random(_git("rev-parse", "HEAD")).sample(range(len(mutants)), min(most, len(mutants)))
    return [mutants[index] for index in sorted(chosen)]


def _git(*arguments: str) -> str | None:
    """Return the output of git, or None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the named mutants, or all; return 1 if one was not killed."""
    parser = argparse.ArgumentParser(prog="python -m devtools.mutants", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try; all if none is named")
    since = f"mutants with a change of their file or tests since COMMIT ({PARENT})"
    parser.add_argument("--touched", nargs="?", const=PARENT, metavar="COMMIT", help=since)
    parser.add_argument("--most", type=int, metavar="N", help="at most N of them, drawn by the hash of HEAD")
    options = parser.parse_args(arguments)
    mutants: Sequence[Mutant] = read()
    if unknown := set(options.names) - {mutant.name for mutant in mutants}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    if options.names:
        mutants = [mutant for mutant in mutants if mutant.name in options.names]
    if options.touched is not None:
        mutants = touched(mutants, options.touched)
    if options.most is not None:
        mutants = drawn(mutants, options.most)
    failed = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for mutant, found in zip(mutants, pool.map(judge, mutants), strict=True):
            is_killed = found in {Outcome.KILLED, Outcome.HUNG}
            failed += not is_killed
            print(f"{found:<13} {mutant.name}" + ("" if is_killed else f": {mutant.hurts}"), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
