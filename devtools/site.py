"""A site on the loopback interface to crawl: pages that link to each other, or a directory of HTML.

Start `python -m devtools.site`, with `--directory html` to serve files; it prints its URL. Knows no crawlers.
"""

import argparse
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
CHILDREN_SHARE = 8
"""One link in so many leads down a tree, so that each page is reachable."""

Links = Mapping[str, Sequence[str]]
"""The paths of a site's pages, and of each page the paths that it links to, "/" being the first."""
Hook = Callable[[str], object]


class MadeUpLinks(Links):
    """The links of `pages` pages of about `links` each, the same at every run."""

    def __init__(self, pages: int, links: int) -> None:
        for name, value in (("pages", pages), ("links", links)):
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        self.pages = pages
        self.links = links

    def __getitem__(self, path: str) -> list[str]:
        page = _page(path)
        if page is None or page >= self.pages:
            raise KeyError(path)
        return [path_of(target) for target in self.targets(page)]

    def __iter__(self) -> Iterator[str]:
        return map(path_of, range(self.pages))

    def __len__(self) -> int:
        return self.pages

    def targets(self, page: int) -> list[int]:
        """Return the numbers of a page's links: its children in a tree, then others drawn by its number."""
        fanout = max(1, self.links // CHILDREN_SHARE)
        first = page * fanout + 1
        children = range(first, min(first + fanout, self.pages))
        draw = random.Random(page)
        return [*children, *(draw.randrange(self.pages) for _ in range(self.links - len(children)))]


class Site:
    """Pages by their links; `fetched` has a pair of user agent and path for each request.

    `before` is called with the user agent at each request, before the response, so that a test can act in the middle of
    a crawl. The hooks by path in `on` are called for one page each. `answers` replaces the pages
    of some paths by a status, by a redirection to a path, or by a closed connection: None.
    """

    def __init__(self, links: Links) -> None:
        self.links = links
        self.fetched: list[tuple[str, str]] = []
        self.before: Hook = lambda _: None
        self.on: dict[str, Hook] = {}
        self.answers: dict[str, int | str | None] = {}
        self.url = ""

    @property
    def paths(self) -> list[str]:
        """Every fetched page, with repetitions."""
        return [path for _, path in self.fetched]

    @property
    def repeats(self) -> int:
        """Links, with the first one from outside, to pages that another link leads to already."""
        return 1 + sum(map(len, self.links.values())) - len(self.links)

    def html(self, path: str, worker: str) -> bytes | None:
        """Return the page at a path, or None."""
        self.fetched.append((worker, path))
        self.before(worker)
        if path in self.on:
            self.on[path](worker)
        if path not in self.links:
            return None
        anchors = "\n".join(f'<li><a href="{target}">{target}</a>' for target in self.links[path])
        return f"<!doctype html>\n<title>{path}</title>\n<ul>\n{anchors}\n</ul>\n".encode()


def path_of(page: int) -> str:
    """Return the path of a page by its number."""
    return f"/page/{page}" if page else "/"


def _page(path: str) -> int | None:
    if path == "/":
        return 0
    number = path.removeprefix("/page/")
    return int(number) if number.isdecimal() and path_of(int(number)) == path else None


@contextmanager
def serving(links: Links, port: int = 0, host: str = HOST) -> Iterator[Site]:
    """Serve pages in the block, on a free port or this one; `url` has no slash."""
    site = Site(links)
    with _listening(partial(_PageHandler, site=site), port, host) as site.url:
        yield site


@contextmanager
def serving_directory(directory: Path, port: int = 0) -> Iterator[str]:
    """Serve the files of a directory for as long as the block lasts; yield its URL."""
    with _listening(partial(_FileHandler, directory=str(directory)), port) as url:
        yield url


@contextmanager
def _listening(handler: Callable[..., BaseHTTPRequestHandler], port: int, host: str = HOST) -> Iterator[str]:
    with _Server((host, port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # connections that are opened together wait a second with the default of 5
    daemon_threads = False  # the end of the block waits for them

    def __init__(self, *args: Any) -> None:
        self._open: set[Any] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for request in self._open.copy():  # a client may keep its connection
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # after a kill, too
            super().handle_error(request, client_address)


class _QuietHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one packet

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the parent's signature
        pass


class _PageHandler(_QuietHandler):
    def __init__(self, *args: Any, site: Site) -> None:
        self._site = site
        super().__init__(*args)

    def do_GET(self) -> None:
        body = self._site.html(self.path, self.headers.get("User-Agent", ""))
        answer = self._site.answers.get(self.path, HTTPStatus.NOT_FOUND if body is None else HTTPStatus.OK)
        if answer is None:
            self.close_connection = True
            return
        if answer == HTTPStatus.NOT_FOUND:
            self.send_error(answer)
            return
        body = body or b""
        self.send_response(HTTPStatus.FOUND if isinstance(answer, str) else answer)
        if isinstance(answer, str):
            self.send_header("Location", answer)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _FileHandler(_QuietHandler, SimpleHTTPRequestHandler):
    pass


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a made-up site."""
    parser.add_argument("--pages", type=int, default=1000, help="pages of the made-up site (%(default)s)")
    parser.add_argument("--links", type=int, default=40, help="links on each of its pages (%(default)s)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m devtools.site", description="Serve a site to crawl.")
    add_options(parser)
    parser.add_argument("--directory", type=Path, help="serve the files of this directory instead")
    parser.add_argument("--port", type=int, default=0, help="port on the loopback interface (a free one)")
    options = parser.parse_args(arguments)
    if options.directory and not options.directory.is_dir():
        parser.error(f"--directory = {options.directory}: no such directory")
    try:
        links = MadeUpLinks(options.pages, options.links)
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        if options.directory:
            url = stack.enter_context(serving_directory(options.directory, options.port))
        else:
            url = stack.enter_context(serving(links, options.port)).url
        print(f"{url}/", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
