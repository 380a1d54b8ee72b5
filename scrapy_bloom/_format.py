"""Text as it travels to Redis and back, and numbers as a reader wants them."""

from typing import Any

_THOUSAND = 1000
_MIN_PAGES = 0.01
# From so many pages on, parts of one do not matter.
_MANY = 9.995


def as_bytes(value: str | bytes) -> bytes:
    """Return text or bytes as they go over a connection: in UTF-8."""
    return value.encode() if isinstance(value, str) else value


def as_text(value: Any) -> str:
    """Return a reply's text, with and without decode_responses."""
    return value.decode() if isinstance(value, bytes) else str(value)


def as_size(number: int) -> str:
    """Return a number of bytes in the unit that fits it."""
    if number < _THOUSAND:
        return f"{number} bytes"
    size = number / _THOUSAND
    for unit in ("KB", "MB"):
        # What would be rounded to 1,000.0 has the next unit.
        if size < _THOUSAND - 0.05:
            return f"{size:.1f} {unit}"
        size /= _THOUSAND
    return f"{size:,.1f} GB"


def as_expected_pages(number: float) -> str:
    """Return how many pages are expected, no more exactly than an expectation bears."""
    if number < _MIN_PAGES / 2:
        return f"fewer than {_MIN_PAGES} pages"
    return f"about {number:.2f} pages" if number < _MANY else f"about {number:,.0f} pages"
