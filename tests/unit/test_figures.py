"""The figures that tests print become ranges."""

from tests.figures import ranges


def test_ranges() -> None:
    """Numbers that differ become ranges, by their values; lines of other words stay apart."""
    lines = ["20 of 121, 9.5 s", "20 of 121, 10.2 s", "100,000 links", "9,000 links", "20 of 121, 10 s"]
    assert list(ranges(lines)) == ["20 of 121, 9.5 to 10.2 s", "9,000 to 100,000 links"]
