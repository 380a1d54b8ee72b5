"""The links of PostgreSQL's documentation, in the order of a breadth-first crawl; see tests/data."""

import gzip
from pathlib import Path

from devtools.site import Links, path_of

_FILE = Path(__file__).parents[1] / "data" / "links-postgresql-docs.txt.gz"


def links() -> dict[str, list[str]]:
    """Return the links of each page, in order, with all repeats."""
    found: dict[str, list[str]] = {}
    with gzip.open(_FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("#"):
                of_page = found.setdefault(line[1:].rstrip("\n"), [])
            else:
                of_page.append(line.rstrip("\n"))
    return found


def site() -> Links:
    """A real site to crawl: its pages by number, each with its links to others of them, with all repeats."""
    found = links()
    paths = {url: path_of(number) for number, url in enumerate(found)}
    return {paths[url]: [paths[link] for link in linked if link in paths] for url, linked in found.items()}
