"""The log of a simulated crawl: its story in a dozen lines, or all of it."""

from collections import deque
from collections.abc import Iterator

from tests.simulation.crawl import Outcome

# Words of a log line that belong to a story.
_WORTH_TELLING = ("FAULT", "PROBLEM", "WARNING", "ERROR", "starts", "ends:", "machine of", "kills", "holds the GIL")
# A line among the last so many of its process is left out.
_REMEMBERED = 4

Line = tuple[float, str, str]


def story(outcome: Outcome) -> list[str]:
    """Return the lines of a crawl that lead to its problem."""
    urls = [word for problem in outcome.problems for word in problem.text.replace(",", " ").split() if "://" in word]
    page = urls[0] if urls else None
    last = _last_words(outcome)
    return [_text(line) for line in outcome.log if _is_of(page, line[2]) or _is_worth_telling(line[2]) or line in last]


def whole(outcome: Outcome) -> Iterator[str]:
    """Yield all lines, with recent repetitions of a process counted instead."""
    recent: dict[str, deque[str]] = {}
    repeated, until = 0, 0.0
    for line in outcome.log:
        at, who, text = line
        seen = recent.setdefault(who, deque(maxlen=_REMEMBERED))
        if text in seen:
            repeated, until = repeated + 1, at
            continue
        if repeated:
            yield f"{until:8.3f}        (repeated {repeated} times)"
            repeated = 0
        seen.append(text)
        yield _text(line)


def _last_words(outcome: Outcome) -> set[Line]:
    """Return the last log line of each process that did not end."""
    words: dict[str, Line] = {}
    for line in outcome.log:
        _, who, text = line
        if text.startswith("ends:"):
            words.pop(who, None)
        elif text.startswith(("INFO", "WARNING", "ERROR")):
            words[who] = line
    return set(words.values())


def _is_of(page: str | None, text: str) -> bool:
    return page is not None and text in (f"fetch {page}", f"drop {page}")


def _is_worth_telling(text: str) -> bool:
    return any(word in text for word in _WORTH_TELLING)


def _text(line: Line) -> str:
    at, who, text = line
    return f"{at:8.3f} {who:>6} {text}"
