"""Lookups of new items by the hundred million: `probe.c`, compiled when needed, over the exported bits of a layer."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.counters import counters
from benchmarks.harness.fill_by_processes import shares
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.storage.filter_keys import FILTER_FIELD, layer_field

_SOURCE = Path(__file__).with_name("probe.c")
_COMPILE_SECONDS = 60
_PIECE_BYTES = 4 * 1024 * 1024
_COMPARED = 5_000


class Probe:
    """The compiled program, in a directory that the caller deletes."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise FileNotFoundError("there is no C compiler `cc` on this machine")
        self._program = directory / "probe"
        command = [compiler, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", str(self._program), str(_SOURCE)]
        subprocess.run(command, check=True, timeout=_COMPILE_SECONDS)

    def locate(self, layer: Layer, first: int, count: int) -> list[tuple[int, list[int]]]:
        """Return the shard and the positions of each item."""
        ran = subprocess.run(
            [self._program, "locate", *_arguments(layer, first, count)], check=True, capture_output=True, text=True
        )
        rows = [list(map(int, row.split())) for row in ran.stdout.splitlines()]
        return [(shard, positions) for shard, *positions in rows]

    def require_same_positions(self, layer: Layer) -> None:
        """Raise an error unless the program and the library find the same positions of some thousand items."""
        for first in (0, 2**32 - _COMPARED // 2, 2**63):
            found = [layer.locate(item) for item in counters(first, first + _COMPARED)]
            wanted = [(layer.shard_keys.index(key), positions) for key, positions in found]
            if self.locate(layer, first, _COMPARED) != wanted:
                raise RuntimeError("probe.c and scrapy_bloom.filter.hashing find different positions")

    def count(self, layer: Layer, shards: Sequence[Path], first: int, count: int) -> int:
        """Return how many of the items have all their bits set, counted by a process for each core."""
        parts = shares(first, first + count, os.cpu_count() or 1)
        processes = [
            subprocess.Popen(
                [self._program, "count", *_arguments(layer, part.start, len(part)), *shards],
                stdout=subprocess.PIPE,
                text=True,
            )
            for part in parts
        ]
        printed = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise RuntimeError(f"probe ended with {[process.returncode for process in processes]}")
        return sum(map(int, printed))


def stored_layer(client: Any, key: str, parameters: FilterParameters) -> Layer:
    """Return the first layer of a stored filter."""
    fields = {name.decode(): text.decode() for name, text in client.hgetall(key).items()}
    identity = parameters.verify_stored(key, fields[FILTER_FIELD])
    return Layer.from_json(key, 0, fields[layer_field(0)], identity.hash_key)


def export(client: Any, layer: Layer, directory: Path) -> list[Path]:
    """Write each shard of a layer to a file, and return the files."""
    paths = []
    for number, key in enumerate(layer.shard_keys):
        paths.append(directory / f"shard-{number}")
        with paths[-1].open("wb") as file:
            for start in range(0, layer.size.shard_bytes, _PIECE_BYTES):
                file.write(client.getrange(key, start, start + _PIECE_BYTES - 1))
    return paths


def _arguments(layer: Layer, first: int, count: int) -> list[str]:
    size = layer.size
    numbers = (size.hashes, size.shards, size.shard_bits, layer.identity.hash_key, layer.index, first, count)
    return [str(number) for number in numbers]
