"""Operations rare in simulated crawls, to be replayed in turn on the states that these reach."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from scrapy_bloom.storage import counters, filter_hash, filter_keys, shard_header, shards
from scrapy_bloom.storage.counters import UNLIMITED
from tests.simulation.cases import StartCase, StoreCase
from tests.support.start_memory import StartScript

# No filter of a crawl has it.
_OTHER = "another"


class _Hash(NamedTuple):
    """A filter's hash, with its description and its first counter and layer."""

    fields: dict[str, str]

    @property
    def filter(self) -> str:
        return self.fields.get(filter_keys.FILTER_FIELD, _OTHER)

    @property
    def credit(self) -> str:
        return next((name for name in self.fields if filter_keys.is_credit_field(name)), filter_keys.credit_field(0, 1))

    @property
    def granted(self) -> int:
        return counters.granted_of(self.fields.get(self.credit, "0"))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.fields)


_OF_HASH: tuple[Callable[[_Hash], Any], ...] = (
    *(
        lambda at, left=left: counters.GrantCredit("", at.credit, 2, 50, at.granted + left)
        for left in (1, 3, 63, 640, 6400)
    ),
    lambda at: counters.GrantCredit("", at.credit, 2, 50, UNLIMITED),
    lambda at: counters.CloseCounter("", at.credit),
    lambda at: counters.ReturnCredit("", at.credit, 1),
    lambda at: counters.ReturnCredit("", at.credit, at.granted + 1),
    lambda at: counters.ChargeCounter("", at.credit, 2),
    lambda _: filter_hash.SetFieldIfAbsent("", filter_keys.reference_field(_OTHER), "1", 1),
    lambda _: filter_hash.SetFieldIfAbsent("", filter_keys.FILTER_FIELD, _OTHER, -1),
    lambda at: filter_hash.SetFieldFenced("", filter_keys.layer_field(9), "", at.filter, 1),
    lambda at: filter_hash.SetFieldFenced("", filter_keys.FILTER_FIELD, "", at.filter, 9),
    lambda _: filter_hash.SetFieldFenced("", filter_keys.layer_field(9), "", _OTHER, 1),
    lambda at: filter_hash.DeleteFieldFenced("", at.credit, at.fields.get(at.credit, ""), at.filter),
    lambda at: filter_hash.DeleteFieldFenced("", at.credit, _OTHER, at.filter),
    lambda at: filter_hash.DeleteFieldFenced("", at.credit, at.fields.get(at.credit, ""), _OTHER),
    lambda at: filter_hash.RestoreFields(
        "", filter_keys.layer_field(9), ((filter_keys.layer_field(9), ""), (at.credit, "0")), 9
    ),
    lambda at: filter_hash.RestoreFields("", at.credit, ((at.credit, "0"),), 1),
    lambda at: filter_hash.DeleteField("", at.credit),
    lambda _: filter_hash.RemoveReference("", filter_keys.reference_field(_OTHER)),
    lambda at: filter_hash.RemoveReference("", next((name for name in at.fields if name.startswith("user:")), "user:")),
    lambda at: filter_hash.DeleteUnusedHash("", at.filter),
    lambda _: filter_hash.DeleteUnusedHash("", _OTHER),
    lambda at: filter_hash.DeleteHash("", at.filter, "", ()),
    lambda _: filter_hash.DeleteHash("", _OTHER, "", ()),
    lambda at: filter_hash.DeleteHash("", "", "", at.names),
    lambda at: filter_hash.DeleteHash("", "", "", at.names[1:]),
    lambda _: filter_hash.Unlink(""),
    lambda _: filter_hash.Load(""),
)

_OF_SHARD: tuple[Callable[[int], Any], ...] = (
    lambda epoch: shards.CreateShard("", 64, epoch, sealed=False, expires=1),
    lambda epoch: shards.CreateShard("", 64, epoch + 1, sealed=True, expires=9),
    lambda epoch: shards.CreateShard("", 64, epoch + 1, sealed=False, expires=-1),
    lambda epoch: shards.DeleteShard("", epoch),
    lambda epoch: shards.DeleteShard("", epoch + 1),
    lambda _: shards.DeleteShard(""),
    lambda _: shards.SealShard(""),
    lambda _: shards.InspectShard(""),
    lambda epoch: shards.WritePiece("", epoch, shard_header.HEADER_BYTES, b"\xff\x01"),
    lambda epoch: shards.WritePiece("", epoch + 1, shard_header.HEADER_BYTES, b"\xff\x01"),
    lambda _: shards.ReadPiece("", 0, 99),
    lambda _: filter_hash.Unlink(""),
)


def of_store(case: StoreCase, turn: int) -> Iterator[StoreCase]:
    """Yield a case with one further operation on a hash and one on a shard."""
    if case.string is None:
        found = _Hash(case.fields or {})
        yield case._replace(operation=_OF_HASH[turn % len(_OF_HASH)](found))
    if case.fields is None:
        header = (case.string or b"")[: shard_header.HEADER_BYTES].ljust(shard_header.HEADER_BYTES, b"\0")
        epoch = shard_header.epoch(shard_header.identity(int.from_bytes(header, "big")))
        yield case._replace(operation=_OF_SHARD[turn % len(_OF_SHARD)](epoch))


def of_start(case: StartCase) -> Iterator[StartCase]:
    """Yield a case with all further scripts, which ask for missing URLs."""
    leased = (*case.memory.leased, "0:nobody:queue")
    number = 1 + max((int(name.partition(":")[0]) for name in leased), default=0)
    yield case._replace(
        operation=StartScript("lease_start", ("list", len(case.memory.waiting) + 1, number, ":w:queue"))
    )
    yield case._replace(operation=StartScript("release_start", ("list", *leased)))
    yield case._replace(operation=StartScript("bury_start", leased))
