"""A layer as a value: equal to another with the same fields, and to no other."""

from dataclasses import fields, replace
from typing import Any

import pytest

from scrapy_bloom.filter.layer import Identity, Layer
from scrapy_bloom.filter.sizing import size_for

LAYER = Layer("k", 1, Identity(5, 7), 1000, 1e-3, size_for(1000, 1e-3), 12.5)
OTHERS: dict[str, Any] = {
    "key": "l",
    "index": 2,
    "identity": Identity(5, 8),
    "capacity": 1001,
    "error_rate": 1e-4,
    "size": size_for(5000, 1e-3),
    "created": 13.0,
}


def test_equal_layers() -> None:
    """A layer that is read again is the same."""
    again = replace(LAYER)
    assert again is not LAYER
    assert again == LAYER
    assert hash(again) == hash(LAYER)


@pytest.mark.parametrize("field", [field.name for field in fields(Layer) if field.init])
def test_different_layers(field: str) -> None:
    """Layers differ if any field differs."""
    assert replace(LAYER, **{field: OTHERS[field]}) != LAYER
