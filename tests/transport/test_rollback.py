"""A server returns to an older state, as from a snapshot: the links to pages of the lost time are taken again.

The filter's id is the same in both states: the caller's number shows the rollback.
"""

from tests.support.dupefilters import build, page
from tests.support.servers import running


def test_under_scrapy_redis(key: str) -> None:
    """Under scrapy-redis's scheduler lost pages are new again, cached ones included; others stay seen."""
    with running("valkey") as server, server.client() as client:
        dupefilter = build(server, key)
        dupefilter.request_seen(page(0))
        client.save()
        assert not any(dupefilter.request_seen(page(number)) for number in range(1, 50))
        server.kill()
        server.start()
        assert not dupefilter.request_seen(page(50))
        assert not any(dupefilter.request_seen(page(number)) for number in range(1, 50))
        assert all(dupefilter.request_seen(page(number)) for number in range(51))
