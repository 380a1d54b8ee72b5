"""Steps that find out how large and how full a filter is."""

from collections.abc import Sequence

from scrapy_bloom.filter import sampling
from scrapy_bloom.filter.info import FilterInfo, LayerInfo
from scrapy_bloom.filter.layer import NO_IDENTITY, Layer
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.sizing import count_of_fill, error_rate_of_fill
from scrapy_bloom.filter.steps import Steps


def describe(lifecycle: Lifecycle) -> Steps[FilterInfo]:
    """Return how large and how full a filter is, by its bits.

    Of a filter to which nothing was added yet, it is what the first addition will make.
    """
    yield from lifecycle.rotate()
    return (yield from describe_layers(lifecycle.parameters, lifecycle.stack.layers))


def describe_layers(parameters: FilterParameters, layers: Sequence[Layer]) -> Steps[FilterInfo]:
    """Return how large and how full a filter of these layers is; without any, what the first addition will make."""
    by_layer = []
    for layer in layers:
        samples = sampling.samples(layer)
        by_layer.append(_describe_layer(layer, sampling.fill(samples, (yield samples))))
    if not by_layer:
        by_layer = [_describe_layer(parameters.first_layer("", NO_IDENTITY, 0, 0.0), 0.0)]
    return _sum_up(parameters, by_layer)


def _sum_up(parameters: FilterParameters, by_layer: Sequence[LayerInfo]) -> FilterInfo:
    bits = sum(layer.bits for layer in by_layer)
    return FilterInfo(
        capacity=parameters.capacity,
        error_rate=parameters.error_rate,
        layers=len(by_layer),
        shards=sum(layer.shards for layer in by_layer),
        bits=bits,
        hashes=by_layer[-1].hashes,
        memory_bytes=sum(layer.memory_bytes for layer in by_layer),
        fill_ratio=sum(layer.fill_ratio * layer.bits for layer in by_layer) / bits,
        estimated_count=sum(layer.estimated_count for layer in by_layer),
        estimated_error_rate=sum(layer.estimated_error_rate for layer in by_layer),
        by_layer=tuple(by_layer),
    )


def _describe_layer(layer: Layer, fill: float) -> LayerInfo:
    size = layer.size
    return LayerInfo(
        capacity=layer.capacity,
        error_rate=layer.error_rate,
        shards=size.shards,
        bits=size.bits,
        hashes=size.hashes,
        memory_bytes=size.memory_bytes,
        fill_ratio=fill,
        estimated_count=count_of_fill(fill, size),
        estimated_error_rate=error_rate_of_fill(fill, size.hashes),
        created=layer.created,
    )
