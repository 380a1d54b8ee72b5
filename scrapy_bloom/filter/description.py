"""Steps that find out how large and how full a filter is."""

from collections.abc import Callable, Sequence

from scrapy_bloom.filter import sampling
from scrapy_bloom.filter.info import FilterInfo, LayerInfo
from scrapy_bloom.filter.layer import NO_IDENTITY, Layer
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.sizing import count_of_fill, error_rate_of_fill
from scrapy_bloom.filter.steps import Steps
from scrapy_bloom.storage import layout
from scrapy_bloom.storage.layout import HEADER_BYTES
from scrapy_bloom.storage.pieces import ReadPiece


def describe(lifecycle: Lifecycle) -> Steps[FilterInfo]:
    """Return how large and how full a filter is, by its bits.

    Of a filter to which nothing was added yet, it is what the first addition will make.
    """
    yield from lifecycle.rotate(adds=False)
    return (yield from describe_layers(lifecycle.parameters, lifecycle.stack.layers, lifecycle.stack.is_made))


def describe_layers(
    parameters: FilterParameters, layers: Sequence[Layer], is_made: Callable[[Layer], bool]
) -> Steps[FilterInfo]:
    """Return how large and how full a filter of these layers is; without any, what the first addition will make.

    A shard that is missing is lost where the layer `is_made`; elsewhere a worker may be about to make it.
    """
    by_layer = []
    for layer in layers:
        samples = sampling.samples(layer)
        headers = [ReadPiece(key, 0, HEADER_BYTES - 1) for key in layer.shard_keys]
        replies = yield [*samples, *headers]
        ones, starts = replies[: len(samples)], replies[len(samples) :]
        lost = sum(not _is_of(start, layer) for start in starts) if is_made(layer) else 0
        by_layer.append(_describe_layer(layer, sampling.fill(samples, ones), lost))
    if not by_layer:
        by_layer = [_describe_layer(parameters.first_layer("", NO_IDENTITY, 0, 0.0), 0.0, 0)]
    return _sum_up(parameters, by_layer)


def _is_of(start: bytes, layer: Layer) -> bool:
    """Return whether a string begins as a shard of this layer."""
    header = int.from_bytes(start.ljust(HEADER_BYTES, b"\0"), "big")
    return layout.is_of(layout.identity(header), layer.identity.epoch)


def _sum_up(parameters: FilterParameters, by_layer: Sequence[LayerInfo]) -> FilterInfo:
    bits = sum(layer.bits for layer in by_layer)
    return FilterInfo(
        capacity=parameters.capacity,
        error_rate=parameters.error_rate,
        layers=len(by_layer),
        shards=sum(layer.shards for layer in by_layer),
        lost_shards=sum(layer.lost_shards for layer in by_layer),
        bits=bits,
        hashes=by_layer[-1].hashes,
        memory_bytes=sum(layer.memory_bytes for layer in by_layer),
        fill_ratio=sum(layer.fill_ratio * layer.bits for layer in by_layer) / bits,
        estimated_count=sum(layer.estimated_count for layer in by_layer),
        estimated_error_rate=sum(layer.estimated_error_rate for layer in by_layer),
        by_layer=tuple(by_layer),
    )


def _describe_layer(layer: Layer, fill: float, lost: int) -> LayerInfo:
    size = layer.size
    return LayerInfo(
        capacity=layer.capacity,
        error_rate=layer.error_rate,
        shards=size.shards,
        lost_shards=lost,
        bits=size.bits,
        hashes=size.hashes,
        memory_bytes=size.memory_bytes,
        fill_ratio=fill,
        estimated_count=count_of_fill(fill, size),
        estimated_error_rate=error_rate_of_fill(fill, size.hashes),
        created=layer.created,
    )
