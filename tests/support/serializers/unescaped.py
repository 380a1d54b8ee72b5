"""Requests as JSON without escapes: no encoding can represent a lone surrogate."""

import json
from typing import Any


def dumps(request: dict[str, Any]) -> str:
    return json.dumps(_plain(request), ensure_ascii=False)


def loads(text: str | bytes) -> Any:
    return json.loads(text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value
