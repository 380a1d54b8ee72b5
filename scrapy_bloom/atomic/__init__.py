"""The Bloom filter as atomic scripts; nothing imports it yet."""
