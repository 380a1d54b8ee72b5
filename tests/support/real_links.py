"""The link streams of real sites, in the order of a breadth-first crawl; see tests/data."""

import gzip
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
SITES = ("python", "postgresql")


def pages(site: str) -> Iterator[list[str]]:
    """The links of each page of a site, in order, with all repeats."""
    found: list[str] = []
    with gzip.open(DATA / f"links-{site}-docs.txt.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("#"):
                yield found
                found = []
            else:
                found.append(line.rstrip("\n"))
    yield found
