"""Requests as bytes, read only from the text of a client that decodes replies."""

from typing import Any

from tests.support.serializers import text_to_bytes


def dumps(request: dict[str, Any]) -> bytes:
    return text_to_bytes.dumps(request).encode()


def loads(stored: str) -> Any:
    if not isinstance(stored, str):
        raise TypeError(f"text is needed, not {type(stored).__name__}")
    return text_to_bytes.loads(stored.encode())
