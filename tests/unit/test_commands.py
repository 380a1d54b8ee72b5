"""The wire form of commands."""

import hiredis
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.storage.bits import CheckBits, LookUpBits
from scrapy_bloom.storage.shard_header import HEADER_BYTES
from scrapy_bloom.transport.commands import Command

# Up to the largest shard and slightly beyond: with one to ten digits.
positions = st.lists(st.integers(0, 9) | st.integers(0, 2**32 - 1), max_size=8)


@given(key=st.text(max_size=12), positions=positions, mark=st.booleans())
def test_a_check_is_packed_as_hiredis_packs_it(key: str, positions: list[int], mark: bool) -> None:
    """The bytes written by hand equal those of hiredis."""
    for operation in (CheckBits(key, positions, mark), LookUpBits(key, positions)):
        command = operation.command()
        assert command.pack() == hiredis.pack_command(tuple(command.arguments))  # type: ignore[arg-type]


@given(positions=st.lists(st.integers(0, 2**28), min_size=1, max_size=4), mark=st.booleans())
def test_a_check_goes_to_the_bits_behind_the_header(positions: list[int], mark: bool) -> None:
    """It reads the header, then reads each bit behind it, or sets it to 1."""
    name, key, *parts = CheckBits("k", positions, mark).command().arguments
    assert [name, key, *parts[:3]] == ["BITFIELD", "k", "GET", "i64", 0]
    offsets = [8 * HEADER_BYTES + position for position in positions]
    expected = [["SET", "u1", offset, 1] if mark else ["GET", "u1", offset] for offset in offsets]
    assert parts[3:] == [part for arguments in expected for part in arguments]
    if not mark:
        assert LookUpBits("k", positions).command().arguments == ["BITFIELD_RO", key, *parts]


def test_a_command_is_its_arguments() -> None:
    """A command's name is its first argument."""
    command = Command("EVAL", "return 1", 0, b"\xff", 1.5)
    assert list(command.arguments) == ["EVAL", "return 1", 0, b"\xff", 1.5]
    assert command.pack() == (b"*5\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n$1\r\n\xff\r\n$3\r\n1.5\r\n")
    assert repr(command) == "Command('EVAL', 'return 1', 0, b'\\xff', 1.5)"
