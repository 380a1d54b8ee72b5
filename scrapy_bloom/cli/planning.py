"""Compute the size of a filter from its parameters: memory, missed pages, growth."""

import math
from dataclasses import dataclass

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.sizing import BLOCK_BITS, LIVE_GENERATIONS, LayerSize, error_rate

# Memory of a fingerprint in a SET of a million, measured by `python -m benchmarks memory`.
SET_BYTES_PER_MEMBER = 80
COMPARED_ERROR_RATES = tuple(10.0**-exponent for exponent in range(2, 10))
# The growth is shown for these multiples of the capacity.
_GROWTH_FACTORS = (2, 5, 10)
# Points at which the error rate of a filling layer is sampled.
_SAMPLES = 200


@dataclass(frozen=True)
class Growth:
    """A filter beyond its capacity: layers, memory and error rate after `requests` distinct requests."""

    requests: int
    layers: int
    memory_bytes: int
    error_rate: float


@dataclass(frozen=True)
class Plan:
    """The size of a filter at its capacity; with a TTL, the sum of all layers that live at once.

    `expected_false_positives` sums the error rates that new requests meet while the filter fills.
    """

    capacity: int
    error_rate: float
    expansion: int
    ttl: float | None
    memory_bytes: int
    bits: int
    hashes: int
    shards: int
    layers: int
    bytes_a_request: float
    set_memory_bytes: int
    expected_false_positives: float
    growth: tuple[Growth, ...]

    @property
    def price(self) -> float:
        """The bits, as a multiple of the least that any Bloom filter of this error rate needs."""
        return self.bits / (self.capacity * -math.log2(self.error_rate) / math.log(2))


def make_plan(parameters: FilterParameters) -> Plan:
    """Return the plan of a filter."""
    sizes, capacity = parameters.sizes(), parameters.capacity
    layers = [sizes[0]] * (LIVE_GENERATIONS if parameters.ttl else 1)
    memory_bytes = sum(layer.memory_bytes for layer in layers)
    # With a TTL the number depends on the spread of the requests over time: an upper bound.
    missed = capacity * parameters.error_rate if parameters.ttl else _missed(sizes[0], capacity)
    return Plan(
        capacity=capacity,
        error_rate=parameters.error_rate,
        expansion=parameters.expansion,
        ttl=parameters.ttl,
        memory_bytes=memory_bytes,
        bits=sum(layer.blocks for layer in layers) * BLOCK_BITS,
        hashes=layers[-1].hashes,
        shards=sum(layer.shards for layer in layers),
        layers=len(layers),
        bytes_a_request=memory_bytes / capacity,
        set_memory_bytes=SET_BYTES_PER_MEMBER * capacity,
        expected_false_positives=missed,
        growth=() if parameters.ttl else tuple(_growth(parameters, sizes, factor) for factor in _GROWTH_FACTORS),
    )


def layers_for(sizes: list[LayerSize], requests: int) -> list[LayerSize]:
    """Return the layers after so many distinct requests, of the sizes that the filter stores."""
    layers: list[LayerSize] = []
    while sum(layer.room for layer in layers) < requests:
        layers.append(sizes[min(len(layers), len(sizes) - 1)])
    return layers


def _missed(size: LayerSize, capacity: int) -> float:
    """Return the expected number of false positives among so many new requests."""
    loads = (capacity / size.blocks * (sample + 0.5) / _SAMPLES for sample in range(_SAMPLES))
    return capacity * sum(error_rate(load, size.hashes)[0] for load in loads) / _SAMPLES


def _growth(parameters: FilterParameters, sizes: list[LayerSize], factor: int) -> Growth:
    requests = factor * parameters.capacity
    layers = layers_for(sizes, requests)
    full = error_rate(requests / layers[0].blocks, layers[0].hashes)[0]
    rate = parameters.error_rate if parameters.expansion else full
    return Growth(requests, len(layers), sum(layer.memory_bytes for layer in layers), rate)
