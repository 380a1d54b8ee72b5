"""The driver of the mutants judges correctly, and its tables fit the code."""

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from devtools.mutants import __main__ as driver
from devtools.mutants.__main__ import ROOT, Mutant, Outcome

MUTANTS = driver.read()
FILE, LINE = "scrapy_bloom/_format.py", '        return plural(size, "byte")\n'
TESTS = ("tests/unit/test_format.py",)


def mutant(new: str, *, old: str = LINE, tests: Sequence[str] = TESTS) -> Mutant:
    """A mistake in a small file."""
    return Mutant("it", FILE, old, new, tuple(tests), "It hurts.")


WRONG = mutant('        return plural(size, "bit")\n')
HARMLESS = mutant(f"        # The same.\n{LINE}")
BROKEN = mutant("        return (\n")
STALE = "STALE         it: It hurts.\n"
ENDLESS = mutant("        while True: pass\n")


@pytest.mark.parametrize("each", MUTANTS, ids=lambda each: each.name)
def test_none_is_stale(each: Mutant) -> None:
    """The old text of a mutant occurs once, its new text differs, its tests exist."""
    assert not each.is_stale, f"{each.name}: its old text must occur exactly once in {each.file}"
    assert each.new != each.old
    assert each.tests
    for test in each.tests:
        path, *names = test.partition("[")[0].split("::")
        assert (ROOT / path).exists(), test
        for name in names:
            assert f"def {name}(" in (ROOT / path).read_text(), test


def test_names_are_unique() -> None:
    """A mutant is selected by its name."""
    assert max(Counter(each.name for each in MUTANTS).values()) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("tried", "outcome", "limit"),
    [(BROKEN, Outcome.BROKEN, 60), (ENDLESS, Outcome.HUNG, 2)],
)
def test_outcome(tried: Mutant, outcome: Outcome, limit: float) -> None:
    """A syntax error is broken, and tests that hang are killed."""
    assert not tried.is_stale
    assert driver.outcome(tried, limit=limit) is outcome


@pytest.mark.parametrize(
    ("tried", "code", "said"),
    [
        pytest.param(WRONG, 0, "killed        it\n", marks=pytest.mark.long),
        pytest.param(HARMLESS, 1, "SURVIVED      it: It hurts.\n", marks=pytest.mark.long),
        (mutant("", old="no such text"), 1, STALE),
        (mutant("", old="size"), 1, STALE),
        pytest.param(mutant("", tests=["none.py"]), 1, "RED           it: It hurts.\n", marks=pytest.mark.long),
    ],
)
def test_exit_code(
    tried: Mutant, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 0 only if every mutant was killed. A stale one's text is missing, or occurs more than once."""
    monkeypatch.setattr(driver, "read", lambda: [tried])
    assert driver.main([]) == code
    assert capsys.readouterr().out == said


def test_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A mutant that does not exist is not killed."""
    with pytest.raises(SystemExit) as ended:
        driver.main(["nothing"])
    assert ended.value.code == 2
    assert "no such mutant: nothing" in capsys.readouterr().err


def git(directory: Path, *arguments: str) -> None:
    """Run git as some user."""
    user = ("-c", "user.name=a", "-c", "user.email=a@b.test", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *user, *arguments], cwd=directory, check=True, capture_output=True)


def commit(directory: Path, name: str) -> None:
    """Commit a change of a file."""
    with (directory / name).open("a") as file:
        file.write("changed\n")
    git(directory, "add", ".")
    git(directory, "commit", "-m", f"Change {name}")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two commits, of which the second one changed `b` and `c`."""
    directory = tmp_path / "checkout"
    directory.mkdir()
    git(directory, "init", "--quiet")
    for name in ("a", "b", "c"):
        (directory / name).write_text("first\n")
    commit(directory, "a")
    (directory / "c").unlink()
    commit(directory, "b")
    monkeypatch.setattr(driver, "ROOT", directory)
    return directory


def over(file: str, *tests: str) -> Mutant:
    """A stale mutant of a file."""
    return Mutant(f"of {file}", file, "no such text", "", tests or ("t",), "It hurts.")


def names_tried(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The names of the mutants that were tried: all are stale."""
    lines = capsys.readouterr().out.splitlines()
    return [line.split(":")[0].removeprefix("STALE         ") for line in lines if line.startswith("STALE")]


def test_touched(checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A mutant is touched by a change of its file or of a test of it."""
    mutants = [over("a"), over("b"), over("c"), over("d", "a::test", "b::test"), over("e", "a::b")]
    monkeypatch.setattr(driver, "read", lambda: mutants)
    assert driver.main(["--touched"]) == 1
    assert names_tried(capsys) == ["of b", "of c", "of d"]
    assert driver.main(["--touched", "HEAD"]) == 0
    assert names_tried(capsys) == []
    commit(checkout, "a")
    assert driver.main(["--touched", "HEAD~2"]) == 1
    assert names_tried(capsys) == ["of a", "of b", "of c", "of d", "of e"]


def test_shallow_clone(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a clone without the parent of HEAD every mutant may be drawn."""
    git(tmp_path, "clone", "--depth", "1", checkout.as_uri(), "shallow")
    monkeypatch.setattr(driver, "ROOT", tmp_path / "shallow")
    monkeypatch.setattr(driver, "read", lambda: [over(name) for name in "abcdef"])
    assert driver.main(["--touched", "--most", "2"]) == 1
    assert "HEAD^: no such commit in this clone, which may be shallow" in (out := capsys.readouterr().out)
    assert out.count("STALE") == 2


def test_draw(checkout: Path) -> None:
    """A commit draws the same mutants each time, in their order, and another commit others."""
    items = [over(f"{number:04}") for number in range(1000)]
    first = driver.drawn(items, 6)
    assert (len(first), sorted(first, key=items.index)) == (6, first)
    assert driver.drawn(items, 6) == first
    commit(checkout, "a")
    assert driver.drawn(items, 6) != first
    assert driver.drawn(items, 1001) == items
