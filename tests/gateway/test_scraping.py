"""What is said of pages of metrics that cannot be read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway import scraping
from gateway.scraping import read_page

NOT_THAT = ", not the store's; give the address that it really has"
GATEWAYS = b'agentmem_build_info{service="gateway",version="1"} 1\n'


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """An HTTP server that answers so; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert await read_page("worker", address) == f"{address} does not answer within 0.2 seconds"


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, b"not found", "ADDRESS answers with status 404; is that its page of metrics?"),
        (200, b"<html></html>", "what ADDRESS answers is no page of metrics; another program may have its port"),
        (200, b"process_start_time_seconds 1\n", f"ADDRESS has another program's page{NOT_THAT}"),
        (200, GATEWAYS, f"ADDRESS has the gateway's page{NOT_THAT}"),
        (200, b"", "what ADDRESS answers has no metrics; another program may have its port"),
        (200, b"up\xff 1\n", "what ADDRESS answers is no page of metrics; another program may have its port"),
    ],
)
async def test_what_is_no_page_is_said(status: int, body: bytes, why: str) -> None:
    with answering(status, body) as address:
        assert await read_page("store", address) == why.replace("ADDRESS", address)
