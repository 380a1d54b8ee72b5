"""Compute the size of a filter from its parameters: memory, missed pages, growth."""

import math
from dataclasses import dataclass

from scrapy_bloom._filter_key import MAX_NODE_BYTES
from scrapy_bloom.filter.layer import NO_IDENTITY, Layer
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.placement import CLUSTER_SHARD_BYTES
from scrapy_bloom.filter.sizing import MAX_SHARD_BYTES, error_rate_at, false_positives_while_filling

# Memory of a fingerprint in a SET of a million, measured by `python -m benchmarks memory`.
SET_BYTES_PER_MEMBER = 80
COMPARED_ERROR_RATES = tuple(10.0**-exponent for exponent in range(2, 10))
# The growth is shown for these multiples of the capacity.
_GROWTH_FACTORS = (2, 5, 10)


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

    `expected_false_positives` sums the error rates that new requests meet while the filter fills. On a cluster the
    filter has `cluster_shards` of at most `cluster_shard_bytes`: on all nodes if it `is_spread`, else on one.
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
    cluster_shards: int
    cluster_shard_bytes: int
    is_spread: bool
    bytes_a_request: float
    set_memory_bytes: int
    expected_false_positives: float
    growth: tuple[Growth, ...]


def make_plan(parameters: FilterParameters, shard_bytes: int | None = None, *, spreads: bool = False) -> Plan:
    """Return the plan of a filter; without `shard_bytes`, in shards of the default size.

    If its key `spreads` on a cluster, it does so at any size.
    """
    layers = _layers(parameters, shard_bytes or MAX_SHARD_BYTES)
    on_cluster = _layers(parameters, shard_bytes or CLUSTER_SHARD_BYTES)
    memory_bytes = sum(layer.size.memory_bytes for layer in layers)
    # With a TTL the number depends on the spread of the requests over time: an upper bound.
    missed = parameters.capacity * parameters.error_rate
    if not parameters.ttl:
        missed = false_positives_while_filling(layers[0].size, parameters.capacity)
    return Plan(
        capacity=parameters.capacity,
        error_rate=parameters.error_rate,
        expansion=parameters.expansion,
        ttl=parameters.ttl,
        memory_bytes=memory_bytes,
        bits=sum(layer.size.bits for layer in layers),
        hashes=layers[-1].size.hashes,
        shards=sum(layer.size.shards for layer in layers),
        layers=len(layers),
        cluster_shards=sum(layer.size.shards for layer in on_cluster),
        cluster_shard_bytes=max(layer.size.shard_bytes for layer in on_cluster),
        is_spread=spreads or parameters.memory_bytes > MAX_NODE_BYTES,
        bytes_a_request=memory_bytes / parameters.capacity,
        set_memory_bytes=SET_BYTES_PER_MEMBER * parameters.capacity,
        expected_false_positives=missed,
        growth=() if parameters.ttl else tuple(_growth(parameters, multiple) for multiple in _GROWTH_FACTORS),
    )


def _layers(parameters: FilterParameters, max_shard_bytes: int) -> list[Layer]:
    if parameters.ttl:
        return _generations(parameters, max_shard_bytes)
    return layers_for(parameters, parameters.capacity, max_shard_bytes)


def layers_for(parameters: FilterParameters, requests: int, max_shard_bytes: int = MAX_SHARD_BYTES) -> list[Layer]:
    """Return the layers after so many distinct requests; each layer is filled to its limit first."""
    layers = [parameters.first_layer("", NO_IDENTITY, 0, 0.0, max_shard_bytes)]
    while parameters.expansion and sum(layer.max_items for layer in layers) < requests:
        bound = sum(layer.error_bound(layer.max_items) for layer in layers)
        layers.append(parameters.next_layer(layers[-1], bound, 0.0, max_shard_bytes))
    return layers


def _generations(parameters: FilterParameters, max_shard_bytes: int) -> list[Layer]:
    """Return the layers that live at once when each generation takes its share of the capacity."""
    generation = float(parameters.generation or 0)
    layers = [parameters.first_layer("", NO_IDENTITY, 0, 0.0, max_shard_bytes)]
    # After this many generations each deleted layer is replaced by one of the same size.
    for number in range(1, 4 * math.ceil(parameters.lifetime / generation)):
        now = number * generation
        alive = [layer for layer in layers if now < layer.created + parameters.lifetime]
        bound = sum(layer.error_bound(layer.capacity) for layer in alive)
        layers = [*alive, parameters.next_layer(alive[-1], bound, now, max_shard_bytes)]
    return layers


def _growth(parameters: FilterParameters, multiple: int) -> Growth:
    requests = multiple * parameters.capacity
    layers = layers_for(parameters, requests)
    rate = parameters.error_rate if parameters.expansion else error_rate_at(layers[0].size, requests)
    return Growth(requests, len(layers), sum(layer.size.memory_bytes for layer in layers), rate)
