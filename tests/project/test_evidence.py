"""The figures of the page on evidence are printed by tests, and its numbers of searches and faults are the code's."""

import re

import pytest

from tests.crawls.test_soak import CRAWLS, SEED
from tests.project.test_docs import NUMBER, PAGE, RESULTS
from tests.queue.search.mistakes import MISTAKES
from tests.queue.search.scenarios import SCENARIOS
from tests.soak import plan
from tests.soak.plan import Kind
from tests.support.documentation import text

EVIDENCE = "docs/evidence.md"
RANGE = rf"\b({NUMBER}) to ({NUMBER})\b"


def numbers(text_: str) -> set[float]:
    """Return the numbers of a text."""
    return {float(number.replace(",", "")) for number in re.findall(NUMBER, text_)}


@pytest.mark.parametrize("page", [EVIDENCE, "README.md"])
def test_ranges(page: str) -> None:
    """Some test has printed both ends of each range in a table."""
    ends = {
        end for row in re.findall(r"^\|.*", text(page), re.MULTILINE) for each in re.findall(RANGE, row) for end in each
    }
    assert ends
    assert numbers(" ".join(ends)) <= numbers(text("tests/RESULTS.md"))


def test_numbers() -> None:
    """The page counts the searches, the wrong designs and the faults of the soak as the code does."""
    several = [each for each in SCENARIOS.values() if each.partitions > 1]
    assert f"of {len(SCENARIOS)} such crawls, {len(several)} of them in two partitions" in text(EVIDENCE)
    assert f"{len(MISTAKES)} wrong designs" in text(EVIDENCE)
    faults = [fault for number in range(CRAWLS) for fault in plan.draw(SEED, number, list(Kind)).faults]
    assert f"| {len(faults)} random faults in {CRAWLS} crawls |" in text(EVIDENCE)


def test_performance() -> None:
    """Each figure in a table on performance, but those of its summary, is one of the results, rounded."""
    results = [float(number.replace(",", "")) for number in re.findall(NUMBER, text(RESULTS))]
    cells = re.findall(r"^\| [^|]*\|(.*)", text(PAGE), re.MULTILINE)
    figures = {figure for each in cells for figure in re.findall(rf"(?<![\w.^-]){NUMBER}(?![\w.^])", each)}
    assert figures
    unknown = {
        figure
        for figure in figures
        if float(figure.replace(",", "")) not in {round(each, len(figure.partition(".")[2])) for each in results}
    }
    assert unknown == set()
