"""Hashing: from an item to 64 bytes, from which a filter takes its block and its bits in every layer.

The digest is keyed with the filter's secret. Without a secret anybody could compute a few URLs whose bits cover those
of another page, offline and once for every filter. Source: Gerbet, Kumar and Lauradoux, "The Power of Evil Choices in
Bloom Filters", 2015. BLAKE2b is cryptographic, so strangers may choose the items. It takes 0.5 us for a URL, where four
mmh3 digests take 0.25 us.
"""

import secrets
from hashlib import blake2b

SCHEME = "blake2b-512 blocked"


def new_secret() -> str:
    """Return a secret for a new filter: 128 random bits, as hexadecimal digits."""
    return secrets.token_hex(16)


def digest(item: bytes, secret: bytes) -> bytes:
    """Return the 64 bytes of an item in the filter with this secret."""
    return blake2b(item, key=secret).digest()
