"""Commands arrive unchanged, and replies match them, even after an error."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hiredis
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from devtools.proxy.faults import CUTS, Place, proxying
from scrapy_bloom.storage.bits import CheckBits
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import BinaryCommand, Command
from scrapy_bloom.transport.retry import disable_client_retries
from tests.support.servers import Server

texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.one_of(texts, st.binary(), st.integers()), min_size=1))
def test_what_is_packed_can_be_unpacked(arguments: list[str | bytes | int]) -> None:
    """A packed command has its original arguments, as bytes."""
    expected = [each if isinstance(each, bytes) else str(each).encode() for each in arguments]
    reader = hiredis.Reader()
    reader.feed(Command(*arguments).pack())
    assert reader.gets() == expected


@given(texts, st.lists(st.integers(0, 2**32 - 100), min_size=1, max_size=40), st.booleans())
def test_a_check_is_written_out_as_it_would_be_packed(key: str, positions: list[int], mark: bool) -> None:
    """The only command not packed by hiredis has byte for byte the same form."""
    arguments: list[str | int] = ["BITFIELD", key, "GET", "i64", 0]
    for position in positions:
        arguments += ("SET", "u1", position + 64, 1) if mark else ("GET", "u1", position + 64)
    command = CheckBits(key, positions, mark).command()
    assert command.arguments == arguments
    assert command.pack() == Command(*arguments).pack()


@pytest.mark.parametrize("kind", [redis.Redis, "Wrapped"])
def test_bytes_are_not_decoded(server: Server, key: str, kind: Any) -> None:
    """A binary reply is unchanged, even from a client that decodes the others."""
    with (Wrapped if kind == "Wrapped" else kind)("127.0.0.1", server.port, decode_responses=True) as client:
        client.set(key, b"\xff\x00")
        said = transport_for(client).execute([BinaryCommand("GETRANGE", key, 0, -1), Command("TYPE", key)])
        assert said == [b"\xff\x00", "string"]


class Wrapped(redis.Redis):
    """A client whose commands pass through user code."""

    asked = 0

    def execute_command(self, *args: object, **kwargs: object) -> object:
        Wrapped.asked += 1
        return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]


@pytest.fixture(params=["redis.Redis", "of the user's"])
def either(request: pytest.FixtureRequest, server: Server) -> Iterator[redis.Redis]:
    """A client of each kind."""
    if request.param == "redis.Redis":
        with server.client() as client:
            yield client
    else:
        with Wrapped("127.0.0.1", server.port) as client:
            yield client


def test_replies_are_in_order(either: redis.Redis, key: str) -> None:
    """Each of many commands has its own reply."""
    commands = [Command("SETRANGE", key, 0, "x" * number) for number in range(1, 300)]
    assert transport_for(either).execute(commands) == list(range(1, 300))
    assert transport_for(either).execute([]) == []


def test_commands_go_through_the_users_code(server: Server, key: str) -> None:
    """A client that overrides execute_command sees every command."""
    Wrapped.asked = 0
    with Wrapped("127.0.0.1", server.port) as client:
        assert transport_for(client).execute([Command("SET", key, 1), Command("GET", key)]) == [True, b"1"]
    assert Wrapped.asked == 2


def test_an_error_is_raised_and_the_next_reply_is_right(either: redis.Redis, key: str) -> None:
    """A refused command raises, and later replies are not taken for those of the next commands."""
    ours = transport_for(either)
    with pytest.raises(redis.ResponseError, match="wrong number"):
        ours.execute([Command("SET", key, 1), Command("GET"), Command("INCR", key)])
    assert ours.execute([Command("ECHO", "next")]) == [b"next"]


@pytest.mark.parametrize("place", CUTS)
def test_a_cut_raises_and_nothing_is_sent_twice(place: Place, valkey: Server, key: str) -> None:
    """A cut at any place raises an error, and no command runs twice."""
    with proxying(valkey.port, "INCR") as proxy, redis.Redis("127.0.0.1", proxy.port) as client:
        disable_client_retries(client)
        ours = transport_for(client)
        proxy.fail(place)
        with pytest.raises(redis.ConnectionError):
            ours.execute([Command("INCR", key)])
        assert ours.execute([Command("INCR", key)])[0] in (1, 2)
        assert proxy.faults == 1


class Interrupted(redis.Connection):
    """A connection whose user presses Ctrl-C once, between two replies."""

    armed = False

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        reply = super().read_response(*args, **kwargs)
        if Interrupted.armed:
            Interrupted.armed = False
            raise KeyboardInterrupt
        return reply


def test_ctrl_c_between_replies(server: Server, key: str) -> None:
    """Replies left unread by Ctrl-C are not taken for those of the next commands."""
    pool = redis.ConnectionPool(connection_class=Interrupted, host="127.0.0.1", port=server.port)
    with redis.Redis(connection_pool=pool) as client:
        ours = transport_for(client)
        ours.execute([Command("ECHO", "connected")])
        Interrupted.armed = True
        # The second reply comes half a second later.
        with pytest.raises(KeyboardInterrupt):
            ours.execute([Command("ECHO", "first"), Command("BLPOP", key, 0.5)])
        assert ours.execute([Command("ECHO", "next")]) == [b"next"]
        pool.disconnect()


def test_a_connection_that_was_closed_meanwhile_is_made_anew(server: Server, client: redis.Redis, key: str) -> None:
    """An idle connection closed by the server is no fault."""
    ours = transport_for(client)
    ours.execute([Command("SET", key, 1)])
    with server.client() as other:
        assert other.client_kill_filter(_type="normal", skipme=True)
    assert ours.execute([Command("GET", key)]) == [b"1"]


def test_threads_do_not_get_in_each_others_way(client: redis.Redis, key: str) -> None:
    """Each of many threads over one transport has the replies to its own commands."""
    ours = transport_for(client)

    def ask(number: int) -> bool:
        words = [f"{key} {number} {again}" for again in range(5)]
        return ours.execute([Command("ECHO", word) for word in words]) == [word.encode() for word in words]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(400)))


def test_many_lines_share_the_clients_connections(server: Server) -> None:
    """Transports keep no connections: a hundred of them work over a client with at most two."""
    with redis.Redis("127.0.0.1", server.port, max_connections=2) as client:
        lines = [transport_for(client) for _ in range(100)]
        assert [each.execute([Command("ECHO", "a")]) for each in lines] == [[b"a"]] * 100
