"""The README and the pages agree with each other, with the code and with the results; their links lead somewhere."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.__main__ import PARTS
from scrapy_bloom.cli.plan import make_plan
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.settings import ERROR_RATE
from scrapy_bloom.text import as_size
from tests.queue.mistakes import MISTAKES
from tests.queue.search.scenarios import SCENARIOS
from tests.simulation.mistakes import MISTAKES as OF_CRAWLS
from tests.support.documentation import ROOT, table, text

PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
READMES = ("README.md", "README.zh-CN.md")
WITH_LINKS = (*sorted(path.name for path in ROOT.glob("*.md")), *PAGES[1:], "benchmarks/RESULTS.md")
RESULTS = "benchmarks/RESULTS.md"
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"


def anchors(file: str) -> set[str]:
    """Return the fragments of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text(file), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_missed() -> None:
    """The expected missed pages and the memory are those of a filter; the README has the first and the last row."""
    *rows, of_the_set = table("docs/capacity.md", "Choose the error rate")
    assert float(rows[0][1]) == ERROR_RATE.default
    for _, error_rate, missed, memory in rows:
        plan = make_plan(FilterParameters(error_rate=float(error_rate)))
        decimals = len(missed.partition(".")[2])
        assert f"{plan['expected_false_positives']:.{decimals}f}" == missed
        assert f"{plan['memory_bytes'] / 1e6:.1f} MB" == memory
    readme = {row[0]: row[1:3] for row in table("README.md", "Compared with scrapy-redis")}
    assert readme["memory for 1,000,000 seen requests"] == [of_the_set[3], rows[0][3]]
    assert readme["new requests dropped in a crawl of that size, expected"] == [of_the_set[2], rows[0][2]]


def test_sizes() -> None:
    """The memory for Redis is that of `plan`, and the measured bytes of a pending request as MessagePack."""
    found = re.search(r"^Pending requests on Redis.*\n\n((?:\|.*\n)+)", text(RESULTS), re.MULTILINE)
    assert found is not None
    (pickled, with_pickles), (pending, written) = (re.findall(r"\d+", line) for line in found[1].splitlines()[2:])
    page = " ".join(text("docs/capacity.md").split())
    assert f"took {pickled} bytes of Redis as a pickle, and {pending} as" in page
    bytes_written, pickled_bytes = (round(int(each), -2) for each in (written, with_pickles))
    assert f"adds some {bytes_written} bytes to the append-only file, and as a pickle some {pickled_bytes}" in page
    plans = [make_plan(FilterParameters(capacity=10**power)) for power in (6, 7, 8)]
    expected = [
        [plan["memory_bytes"] for plan in plans],
        [plan["growth"][0]["memory_bytes"] for plan in plans],
        [plan["capacity"] // 10 * int(pending) for plan in plans],
        [plan["set_memory_bytes"] for plan in plans],
    ]
    rows = table("docs/capacity.md", "How much memory")
    assert [row[1:] for row in rows] == [[as_size(size) for size in sizes] for sizes in expected]


def test_lowest_versions() -> None:
    """The lowest versions are those of pyproject.toml, and the newest Python is the last of its classifiers."""
    extra = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    lines = [f"python{PROJECT['requires-python']}", *PROJECT["dependencies"], *extra]
    rows = table("docs/servers.md", "Packages")
    assert {row[0].split("`")[1]: f">={row[1]}" for row in rows} == {
        each.name: str(each.specifier) for each in map(Requirement, lines)
    }
    *_, python = (line for line in PROJECT["classifiers"] if line.startswith("Programming Language :: Python"))
    assert python.endswith(f" {rows[0][2]}")


@pytest.mark.parametrize("page", [page for page in PAGES if "python -m benchmarks" in text(page)])
def test_benchmarks(page: str) -> None:
    """Each benchmark that a page names exists."""
    assert set(re.findall(r"python -m benchmarks(?:[ \n]([a-z_]+))?", text(page))) - {""} <= {*PARTS}


def test_entrances() -> None:
    """The documentation's index links to every page, and the README begins with the description of the package."""
    pages = {Path(page).name for page in PAGES} - {"README.md", "index.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", text("docs/index.md"))) == pages
    _, _, lead, *_ = text("README.md").split("\n\n")
    assert lead.strip("*").replace("\n", " ") == f"{PROJECT['description']}."


def test_chinese_readme() -> None:
    """The Chinese README has the English one's code but for its comments, samples, links, and numbers of tables."""

    def parts(readme: str) -> list[object]:
        content = text(readme).replace(".zh_CN.svg", ".svg")
        blocks = re.findall(r"^```(\w+)\n(.*?)^```", content, re.MULTILINE | re.DOTALL)
        rows = re.findall(r"^\|.*", content, re.MULTILINE)
        return [
            [(language, re.sub(r"#.*", "", code)) for language, code in blocks],
            set(re.findall(r"\]\(([^)\s]+)\)", content)) - set(READMES),
            [sorted(re.findall(r"\d[\d.,]*\d|\d", row)) for row in rows],
        ]

    english, chinese = map(parts, READMES)
    assert english == chinese


@pytest.mark.parametrize("page", WITH_LINKS)
def test_links(page: str) -> None:
    """Every link to a file of this repository leads to a file, and to a heading."""
    for link in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.is_file(), link
        assert not anchor or anchor in anchors(str(path.resolve().relative_to(ROOT))), link


def test_searches() -> None:
    """The evidence has the numbers of searched crawls, and of the mistakes that the search and the simulation find."""
    page = text("docs/evidence.md")
    assert f"There are {len(SCENARIOS)} such crawls." in page
    assert f"To check the search, {len(MISTAKES)} wrong designs are tried" in page
    assert f"It must find {len(OF_CRAWLS)} wrong designs." in page


def test_figures() -> None:
    """Each figure in a table on performance is one of the results, rounded; so is each that the README measured."""
    results = [float(number.replace(",", "")) for number in re.findall(NUMBER, text(RESULTS))]
    cells = re.findall(r"^\| [^|]*\|(.*)", text("docs/performance.md"), re.MULTILINE)
    # The first two rows of the README come from a plan.
    cells += [" ".join(cells) for _, *cells in table("README.md", "Compared with scrapy-redis")[2:]]
    figures = {figure for each in cells for figure in re.findall(rf"(?<![\w.^-]){NUMBER}(?![\w.^])", each)}
    assert figures
    rounded = {digits: {round(each, digits) for each in results} for digits in range(5)}
    assert [each for each in figures if float(each.replace(",", "")) not in rounded[len(each.partition(".")[2])]] == []
