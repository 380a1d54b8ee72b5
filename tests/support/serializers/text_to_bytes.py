"""Requests as text, read from a server's bytes alone."""

import base64
import pickle
from typing import Any


def dumps(request: dict[str, Any]) -> str:
    return base64.b64encode(pickle.dumps(request)).decode()


def loads(stored: bytes) -> Any:
    if not isinstance(stored, bytes):
        raise TypeError(f"bytes are needed, not {type(stored).__name__}")
    return pickle.loads(base64.b64decode(stored))  # noqa: S301  # written by `dumps`
