"""Zyte API on the loopback interface: it answers with the pages of a site."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from devtools.site import HOST, Site


@contextmanager
def fetching(site: Site) -> Iterator[str]:
    """Serve the pages of a site in the block; yield the API's address, for ZYTE_API_URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            url = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["url"]
            page = site.html(url.removeprefix(site.url) or "/", "api") or b""
            answer = {
                "url": url,
                "statusCode": 200,
                "httpResponseBody": base64.b64encode(page).decode(),
                "httpResponseHeaders": [{"name": "Content-Type", "value": "text/html"}],
            }
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the parent's signature
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
