"""The driver of the mutants judges correctly, and its tables fit the code."""

from collections import Counter
from collections.abc import Sequence

import pytest

from devtools.mutants import __main__ as driver
from devtools.mutants.__main__ import ROOT, Mutant, Outcome

MUTANTS = driver.read()
FILE, LINE = "scrapy_bloom/_format.py", '        return plural(size, "byte")\n'
TESTS = ("tests/unit/test_text.py",)


def mutant(new: str, *, old: str = LINE, tests: Sequence[str] = TESTS) -> Mutant:
    """A mistake in a small file."""
    return Mutant("it", FILE, old, new, tuple(tests), "It hurts.")


WRONG = mutant('        return plural(size, "bit")\n')
HARMLESS = mutant(f"        # The same.\n{LINE}")
BROKEN = mutant("        return (\n")
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


@pytest.mark.parametrize("tried", [mutant("", old="no such text"), mutant("", old="size")], ids=["nowhere", "many"])
def test_stale(tried: Mutant) -> None:
    """A mutant whose old text is missing, or occurs more than once, is stale."""
    assert tried.is_stale


@pytest.mark.parametrize(
    ("tried", "outcome"),
    [
        (WRONG, Outcome.KILLED),
        pytest.param(HARMLESS, Outcome.SURVIVED, marks=pytest.mark.long),
        pytest.param(BROKEN, Outcome.BROKEN, marks=pytest.mark.long),
    ],
)
def test_outcome(tried: Mutant, outcome: Outcome) -> None:
    """A mistake detected by a test is killed, a comment survives, and a syntax error is broken."""
    assert not tried.is_stale
    assert driver.outcome(tried) is outcome


@pytest.mark.long
def test_outcome_of_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that hang are killed."""
    monkeypatch.setattr(driver, "LIMIT", 2)
    assert driver.outcome(ENDLESS) is Outcome.HUNG


@pytest.mark.parametrize(
    ("tried", "code", "said"),
    [
        pytest.param(WRONG, 0, "killed        it\n", marks=pytest.mark.long),
        pytest.param(HARMLESS, 1, "SURVIVED      it: It hurts.\n", marks=pytest.mark.long),
        (mutant("", old="no such text"), 1, "STALE         it: It hurts.\n"),
        pytest.param(
            mutant("", tests=["tests/unit/test_nothing.py"]), 1, "RED           it: It hurts.\n", marks=pytest.mark.long
        ),
    ],
)
def test_exit_code(
    tried: Mutant, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 0 only if every mutant was killed."""
    monkeypatch.setattr(driver, "read", lambda: [tried])
    assert driver.main([]) == code
    assert capsys.readouterr().out == said


def test_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A mutant that does not exist is not killed."""
    with pytest.raises(SystemExit) as ended:
        driver.main(["nothing"])
    assert ended.value.code == 2
    assert "no such mutant: nothing" in capsys.readouterr().err
