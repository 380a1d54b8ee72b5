"""The shapes of the sites that tests crawl: their pages, and the links of each."""

from devtools.site import Links, path_of

FANOUT = 3
# Of the pages that link to each other: links of a page down the tree, by which each page is reached.
CHILDREN = 4
# The first pages, which every page links to: most links are repeats, as on real sites.
BACK_TO = 5


def chain(pages: int) -> Links:
    """Each page links to the next: any loss ends the crawl."""
    return {path_of(page): [path_of(page + 1)] if page + 1 < pages else [] for page in range(pages)}


def tree(pages: int) -> Links:
    """Each page links to three others that no other page links to: any loss is a missed page."""
    return {
        path_of(page): [path_of(child) for child in range(FANOUT * page + 1, min(FANOUT * page + 4, pages))]
        for page in range(pages)
    }


def star(pages: int) -> Links:
    """The first page links to all others, which have no links."""
    return {path_of(page): list(map(path_of, range(1, pages))) if page == 0 else [] for page in range(pages)}


def linked(pages: int) -> Links:
    """Each page links to the first ones, to itself and down a tree from "/"."""
    return {path_of(page): _targets(page, pages) for page in range(pages)}


def _targets(page: int, pages: int) -> list[str]:
    children = range(page * CHILDREN + 1, min((page + 1) * CHILDREN + 1, pages))
    return [path_of(target) for target in (*range(min(BACK_TO, pages)), *children, page)]
