"""A site on the loopback interface to crawl: made up, or a directory of HTML. Knows nothing of crawlers.

Start `python -m example_project.site`, with `--directory html` to serve files; it prints its URL.
"""

import argparse
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
CHILDREN_SHARE = 8
"""One link in so many leads down a tree, so that each page is reached; the others lead anywhere."""


@dataclass(frozen=True)
class MadeUpSite:
    """`pages` pages of about `links` links each, the same at every run, all of them reachable from page 0."""

    pages: int
    links: int

    def __post_init__(self) -> None:
        for name in ("pages", "links"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")

    def paths(self) -> list[str]:
        """The path of every page, page 0 first."""
        return [_path(page) for page in range(self.pages)]

    def targets(self, page: int) -> list[int]:
        """The pages that a page links to: its children in a tree, then others drawn by its number."""
        fanout = max(1, self.links // CHILDREN_SHARE)
        first = page * fanout + 1
        children = range(first, min(first + fanout, self.pages))
        draw = random.Random(page)
        return [*children, *(draw.randrange(self.pages) for _ in range(self.links - len(children)))]

    def html(self, path: str) -> bytes | None:
        """The page at a path, or None where there is none."""
        page = _page(path)
        if page is None or page >= self.pages:
            return None
        title = f"Page {page}"
        items = "\n".join(f'<li><a href="{_path(other)}">Page {other}</a>' for other in self.targets(page))
        return f"<!doctype html>\n<title>{title}</title>\n<h1>{title}</h1>\n<ul>\n{items}\n</ul>\n".encode()


def _path(page: int) -> str:
    return f"/page/{page}" if page else "/"


def _page(path: str) -> int | None:
    if path == "/":
        return 0
    number = path.removeprefix("/page/")
    return int(number) if number.isdecimal() and _path(int(number)) == path else None


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # the default of 5 makes connections opened together wait a second


class _QuietHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # buffered: head and body leave in one packet
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the parent's signature
        pass


class _MadeUpHandler(_QuietHandler):
    def __init__(self, *args: Any, site: MadeUpSite) -> None:
        self._site = site
        super().__init__(*args)

    def do_GET(self) -> None:
        body = self._site.html(self.path)
        if body is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _DirectoryHandler(_QuietHandler, SimpleHTTPRequestHandler):
    pass


@contextmanager
def serve(site: MadeUpSite | Path, port: int = 0) -> Iterator[str]:
    """Serve a made-up site, or a directory, while the context lasts; yields the URL of its first page.

    Port 0 takes a free one.
    """
    handler: Callable[..., BaseHTTPRequestHandler]
    if isinstance(site, MadeUpSite):
        handler = partial(_MadeUpHandler, site=site)
    else:
        handler = partial(_DirectoryHandler, directory=str(site))
    with _Server((HOST, port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a made-up site."""
    parser.add_argument("--pages", type=int, default=1000, help="pages of the made-up site (%(default)s)")
    parser.add_argument("--links", type=int, default=40, help="links on each of its pages (%(default)s)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m example_project.site", description="Serve a site to crawl.")
    add_options(parser)
    parser.add_argument("--directory", type=Path, help="serve the files of this directory instead")
    parser.add_argument("--port", type=int, default=0, help="port on the loopback interface (a free one)")
    options = parser.parse_args(arguments)
    if options.directory and not options.directory.is_dir():
        parser.error(f"--directory = {options.directory}: no such directory")
    try:
        site = options.directory or MadeUpSite(options.pages, options.links)
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), serve(site, options.port) as url:
        print(url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
