"""Put known mistakes into copies of the project, one at a time, and check that the tests fail: `make mutants`.

A mutant is a `[[mutant]]` table in one of the `.toml` files beside this module. It replaces the `old` text, which
occurs exactly once in `file`, by the `new` text. At least one of its `tests` must fail, and `hurts` describes the
consequence for users. The working tree is never touched.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Seconds; the tests of one mutant take a few, or hang.
LIMIT = 300
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


def run(copy: Path, tests: Sequence[str]) -> int | None:
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
        return process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@cache
def is_green(tests: tuple[str, ...]) -> bool:
    """Return whether these tests pass in a copy without any mistake."""
    with copied() as copy:
        where = [sys.executable, "-c", "import scrapy_bloom; print(scrapy_bloom.__file__)"]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        found = subprocess.run(where, cwd=copy.parent, env=environment, check=True, capture_output=True, text=True)
        if not Path(found.stdout.strip()).is_relative_to(copy):
            sys.exit(f"the tests would import {found.stdout.strip()}, which is not the copy's")
        return run(copy, tests) == _PASSED


def outcome(mutant: Mutant) -> Outcome:
    """Try a mutant whose tests pass without it."""
    with copied() as copy:
        file = copy / mutant.file
        file.write_text(file.read_text().replace(mutant.old, mutant.new))
        code = run(copy, mutant.tests)
    found = {None: Outcome.HUNG, _FAILED: Outcome.KILLED, _PASSED: Outcome.SURVIVED}
    return found.get(code, Outcome.BROKEN)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the named mutants, or all; return 1 if one was not killed."""
    parser = argparse.ArgumentParser(prog="python -m devtools.mutants", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try; all if none is named")
    names = parser.parse_args(arguments).names
    mutants = read()
    if unknown := set(names) - {mutant.name for mutant in mutants}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    failed = 0
    for mutant in mutants:
        if names and mutant.name not in names:
            continue
        if mutant.is_stale:
            found = Outcome.STALE
        elif not is_green(mutant.tests):
            found = Outcome.RED
        else:
            found = outcome(mutant)
        is_killed = found in {Outcome.KILLED, Outcome.HUNG}
        failed += not is_killed
        print(f"{found:<13} {mutant.name}" + ("" if is_killed else f": {mutant.hurts}"), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
