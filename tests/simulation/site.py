"""The site of a simulated crawl: pages that link to each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Link:
    """A link that a callback yields as a request."""

    url: str
    priority: int = 0
    dont_filter: bool = False


@dataclass(frozen=True)
class Shape:
    """The shape of a site.

    Attributes:
        pages: their number.
        depth: maximum distance from a page back to its first parent; small numbers make chains.
        density: further links a page.
        repeats: maximum number of equal links on a page.
        private: share of pages that only one worker knows, as a start request.
        priorities: whether links have different priorities.
        unfiltered: whether some links have dont_filter.
        failing: whether some downloads fail once or twice.
    """

    pages: int = 20
    depth: int = 4
    density: float = 0.5
    repeats: int = 1
    private: float = 0.0
    priorities: bool = False
    unfiltered: bool = False
    failing: bool = False


class Site:
    """The pages: `links` by URL, and the start pages of a crawl."""

    def __init__(self, shape: Shape, chance: Random) -> None:
        self.urls = [f"http://s/{number}" for number in range(shape.pages)]
        self.private = [url for url in self.urls[1:] if chance.random() < shape.private]
        self.links: dict[str, list[Link]] = {url: [] for url in self.urls}
        for number, url in enumerate(self.urls):
            if number and url not in self.private:
                parent = self.urls[chance.randrange(max(0, number - shape.depth), number)]
                self.links[parent].append(Link(url, _priority(shape, chance)))
        for _ in range(int(shape.pages * shape.density)):
            self.links[chance.choice(self.urls)].append(Link(chance.choice(self.urls), _priority(shape, chance)))
        for links in self.links.values():
            if links and chance.random() < 0.3:
                links.extend(chance.choices(links, k=chance.randint(0, shape.repeats - 1)))
            chance.shuffle(links)
        leaves = [url for url in self.urls if not self.links[url]]
        if shape.unfiltered and leaves:
            for url in chance.sample(self.urls, min(5, shape.pages)):
                if self.links[url]:
                    self.links[url].append(Link(chance.choice(leaves), dont_filter=True))
        self._failures = {url: chance.choice([0] * 9 + [1, 2]) for url in self.urls} if shape.failing else {}

    def fails(self, url: str, attempt: int) -> bool:
        """Return whether a download fails."""
        return attempt < self._failures.get(url, 0)

    def reachable(self, roots: Sequence[str]) -> set[str]:
        """Return all pages reachable from these, themselves included."""
        found: set[str] = set()
        todo = list(roots)
        while todo:
            url = todo.pop()
            if url not in found:
                found.add(url)
                todo += [link.url for link in self.links[url]]
        return found


def _priority(shape: Shape, chance: Random) -> int:
    return chance.choice([0, 0, 1, -1, 5]) if shape.priorities else 0
