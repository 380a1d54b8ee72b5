"""The figures of the README and of the page on performance are those of benchmarks/RESULTS.md, the bad ones too."""

import re

from tests.support.documentation import table, tables, text

RESULTS = "benchmarks/RESULTS.md"
PAGE = "docs/performance.md"
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"


def result(title: str) -> list[list[str]]:
    """Return the rows of the only table in the results whose title contains a text."""
    (found,) = re.findall(rf"^.*{re.escape(title)}.*\n\n((?:\|.*\n)+)", text(RESULTS), re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()[2:]]


def test_readme() -> None:
    """The README has the figures of crawls, rounded."""
    *_, trips, time, two, postgresql, distant, _, _, _ = (
        row[1:] for row in table("README.md", "Compared with scrapy-redis")
    )
    titles = ("python3-doc, workers: 1.", "python3-doc, workers: 2.", "postgresql-doc-15, workers: 2.")
    alone, *shared = ({name: cells for name, *cells in result(title)} for title in titles)
    stock, ours = "scrapy-redis", "scrapy-bloom, BloomScheduler"
    assert trips == [alone[stock][4], alone[ours][4]]
    assert time == [alone[stock][0], alone[ours][0]]
    assert [two, postgresql] == [["1", each[ours][0]] for each in shared]
    far = {name: cells for name, *cells in result("postgresql-doc-15, 1,169 to 1,169 pages, one worker.")}
    assert distant == [f"{float(far[kind][2]):.1f}" for kind in (stock, ours)]


def test_missed_targets() -> None:
    """The page has each missed target, with its bound and its figure, and the number of all targets."""
    verdicts = re.findall(
        rf"^Target: .* at (?:most|least) ({NUMBER}). Measured ({NUMBER}): (\w+).$", text(RESULTS), re.MULTILINE
    )
    assert len(verdicts) == text(RESULTS).count("\nTarget: ")
    assert f"Of the {len(verdicts)} targets" in text(PAGE)
    missed = [(bound, measured) for bound, measured, verdict in verdicts if verdict == "MISSED"]
    assert [(row[2].split()[-1], row[3]) for row in table(PAGE, "Missed targets")] == missed


def test_two_workers() -> None:
    """The crawls with two workers have the ratios and the round trips of the results."""
    sites = [result(f"{site}, workers: 2.") for site in ("made-up site", "python3-doc", "postgresql-doc-15")]
    expected = [[each[row][1] for each in sites] + [each[row][5] for each in sites] for row in range(3)]
    rows = tables(PAGE, "Whole crawls")[1]
    assert [[*row[1:4], *re.findall(NUMBER, row[4])] for row in rows] == expected


def test_the_field() -> None:
    """Each way of the field has its row, with the rate and the server's time of the results."""
    expected = {(float(row[2]), row[4]) for row in result("One process adds new items. Redis")}
    assert {(float(row[1]), row[2]) for row in table(PAGE, "The field")} <= {
        (round(rate, digits), time) for rate, time in expected for digits in (1, 2)
    }
    assert len(table(PAGE, "The field")) == len(expected)
