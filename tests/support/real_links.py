"""The links of real sites, in the order of a breadth-first crawl; see tests/data."""

import gzip
from collections.abc import Iterator
from pathlib import Path

from devtools.site import Links, path_of

DATA = Path(__file__).parents[1] / "data"
SITES = ("python", "postgresql")


def site(name: str) -> Links:
    """A real site to crawl: its pages by number, each with its links to others of them, with all repeats."""
    found = _pages(name)
    paths = {url: path_of(number) for number, url in enumerate(found)}
    return {paths[url]: [paths[link] for link in links if link in paths] for url, links in found.items()}


def pages(name: str) -> Iterator[list[str]]:
    """The links of each page of a site, in order, with all repeats."""
    yield from _pages(name).values()


def _pages(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    with gzip.open(DATA / f"links-{name}-docs.txt.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("#"):
                links = found.setdefault(line[1:].rstrip("\n"), [])
            else:
                links.append(line.rstrip("\n"))
    return found
