"""A small site on the loopback interface that remembers what was fetched from it, and knows nothing of crawlers."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FANOUT = 4
"""Links of a page down the tree, by which each page is reached."""
BACK_TO = 5
"""The first pages, which every page links to: most links are repeats, as on real sites."""

Hook = Callable[[str], object]


class Site:
    """`pages` pages, all of them reachable from "/"; `fetched` is what was asked for, a pair of worker and path each.

    `before` is called with the user agent of the worker whenever a page is asked for, before the answer; a test can
    make things happen in the middle of a crawl by it. Hooks by paths in `on` are called so for one page each.
    """

    def __init__(self, pages: int) -> None:
        self.links: Mapping[str, Sequence[str]] = {_path(page): _links(page, pages) for page in range(pages)}
        self.fetched: list[tuple[str, str]] = []
        self.before: Hook = lambda _: None
        self.on: dict[str, Hook] = {}
        self.url = ""

    @property
    def paths(self) -> list[str]:
        """Every page that was fetched, as often as it was."""
        return [path for _, path in self.fetched]

    @property
    def repeats(self) -> int:
        """Links, the first one from outside included, that lead to a page which another one leads to already."""
        return 1 + sum(map(len, self.links.values())) - len(self.links)

    def html(self, path: str, worker: str) -> bytes | None:
        """The page at a path, or None where there is none."""
        self.fetched.append((worker, path))
        self.before(worker)
        if path in self.on:
            self.on[path](worker)
        if path not in self.links:
            return None
        anchors = "\n".join(f'<li><a href="{target}">{target}</a>' for target in self.links[path])
        return f"<!doctype html>\n<title>{path}</title>\n<ul>\n{anchors}\n</ul>\n".encode()


@contextmanager
def serving(pages: int) -> Iterator[Site]:
    """A site on a free port, as long as the block lasts."""
    site = Site(pages)
    with _Server(("127.0.0.1", 0), partial(_Handler, site=site)) as server:
        site.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # connections that are opened together wait a second with the default of 5
    daemon_threads = True  # a worker that was killed leaves its connections open


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one packet

    def __init__(self, *args: Any, site: Site) -> None:
        self._site = site
        super().__init__(*args)

    def do_GET(self) -> None:
        body = self._site.html(self.path, self.headers.get("User-Agent", ""))
        if body is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the parent's signature
        pass


def _path(page: int) -> str:
    return f"/page/{page}" if page else "/"


def _links(page: int, pages: int) -> list[str]:
    children = range(page * FANOUT + 1, min((page + 1) * FANOUT + 1, pages))
    return [_path(target) for target in (*range(min(BACK_TO, pages)), *children, page)]
