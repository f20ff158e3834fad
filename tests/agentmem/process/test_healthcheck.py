from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from agentmem.process import health
from agentmem.process.server import GrpcServer


async def test_grpc(run_dir: Path) -> None:
    # Not the server's address: grpc shares connections between channels of a process, and their failures for a while.
    assert "UNAVAILABLE" in await asyncio.to_thread(health.problem, f"unix:{run_dir}/nobody.sock", 20.0)
    target = f"unix:{run_dir}/s.sock"
    server = GrpcServer(target, [])
    await server.start()
    try:
        assert await asyncio.to_thread(health.problem, target, 20.0) == f"{target} is NOT_SERVING"
        await server.set_serving(True)
        assert await asyncio.to_thread(health.problem, target, 20.0) == ""
    finally:
        await server.stop(0)


@pytest.mark.parametrize(("status", "found"), [(200, ""), (503, "503 loading")])
def test_http(status: int, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which is not asked
    with answering(status, b"loading") as url:
        assert health.problem(url) == (found and f"{url}: {found}")
    assert "refused" in health.problem(url)


def test_what_is_no_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseHTTPRequestHandler, "send_response", lambda each, _: each.wfile.write(b"\0\0\n"))
    with answering(200, b"") as url:
        assert "a server of HTTP" in health.problem(url)
    assert "IPv6" in health.problem("http://[::1/readyz")


def test_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, b"") as url:
        monkeypatch.setattr("sys.argv", ["healthcheck", url])
        health.main()
    with pytest.raises(SystemExit, match="refused"):
        health.main()
    monkeypatch.setattr("sys.argv", ["healthcheck"])
    with pytest.raises(SystemExit, match="usage"):
        health.main()


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/readyz"
        finally:
            server.shutdown()
            thread.join()
