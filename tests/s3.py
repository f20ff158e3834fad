"""An S3 endpoint on localhost, a process of its own that speaks HTTP, and a proxy in front of it that makes faults."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import obstore
from obstore.store import S3Store

ACCESS_KEY: Final = "AKIDTESTTESTTEST"
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": "not-for-any-log",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Its clients' variables."""
SECRET_KEY: Final = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]


@contextmanager
def serving() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **ENVIRONMENT},
    )
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                time.sleep(0.05)
        if process.poll() is not None:
            raise RuntimeError("the moto server has ended")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def create_bucket(endpoint: str, name: str) -> None:
    sign = {"Authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/aws4_request"}
    request = urllib.request.Request(f"{endpoint}/{name}", method="PUT", headers=sign)
    with urllib.request.urlopen(request) as response:
        if response.status != 200:
            raise RuntimeError(f"no bucket was made: status {response.status}")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@dataclass(frozen=True)
class Bucket:
    """A bucket that is this test's alone, seen from outside of the program."""

    endpoint: str
    name: str = field(default_factory=lambda: f"bucket-{uuid.uuid4().hex[:12]}")

    def create(self) -> None:
        create_bucket(self.endpoint, self.name)

    def location(self, prefix: str = "kv") -> str:
        """As --remote takes it."""
        return f"s3://{self.name}/{prefix}"

    @property
    def _store(self) -> S3Store:
        return S3Store(self.name, endpoint=self.endpoint, client_options={"allow_http": True})

    def keys(self) -> set[str]:
        return {entry["path"] for page in obstore.list(self._store) for entry in page}

    def objects(self, prefix: str = "kv") -> set[str]:
        return {key for key in self.keys() if key.startswith((f"{prefix}/blocks/", f"{prefix}/windows/"))}

    def read(self, key: str) -> bytes:
        return bytes(obstore.get(self._store, key).bytes())

    def write(self, key: str, data: bytes) -> None:
        obstore.put(self._store, key, data)

    def delete(self, key: str) -> None:
        obstore.delete(self._store, key)


Fault = Callable[[str, str], int]
"""The fate of a request, by method and path: 0 passes; a status is answered instead; CUT breaks the answer off."""

CUT = -1


@dataclass
class Proxy:
    """Passes requests on, unless `fault` says otherwise. `seen` counts them by method.

    One PUT is passed on at a time: S3 looks at its condition and writes in one step, and moto's server in two.
    """

    address: str
    fault: Fault = lambda method, path: 0
    seen: dict[str, int] = field(default_factory=dict)


@contextmanager
def proxy(endpoint: str) -> Iterator[Proxy]:
    upstream = endpoint.removeprefix("http://")
    lock, writing = threading.Lock(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            with lock:
                running.seen[self.command] = running.seen.get(self.command, 0) + 1
                fault = running.fault(self.command, self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if fault > 0:
                self._answer(fault, {}, b"<Error><Code>SlowDown</Code></Error>")
                return
            connection = http.client.HTTPConnection(upstream, timeout=30)
            with writing if self.command == "PUT" else nullcontext():
                try:
                    connection.request(self.command, self.path, body, dict(self.headers))
                    response = connection.getresponse()
                    data = response.read()
                finally:
                    connection.close()
            headers = {name: value for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP}
            if fault == CUT:
                self._answer(response.status, headers, data[: len(data) // 2], len(data))
                self.close_connection = True
                return
            self._answer(response.status, headers, data)

        def _answer(self, status: int, headers: Mapping[str, str], data: bytes, size: int | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data) if size is None else size))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815 - the base class's

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    running = Proxy(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_HOP_BY_HOP = {"connection", "content-length", "transfer-encoding", "server", "date"}
