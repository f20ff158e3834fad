"""An S3 endpoint on localhost, a process of its own that speaks HTTP: moto's server, where that is installed."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ACCESS_KEY: Final = "AKIDTESTTESTTEST"
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": "not-for-any-log",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""What its clients need."""


def installed() -> bool:
    """Whether there is one to start."""
    return importlib.util.find_spec("moto") is not None and importlib.util.find_spec("flask") is not None


@contextmanager
def serving() -> Iterator[str]:
    """A server; its address."""
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
    """Make a bucket."""
    sign = {"Authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/aws4_request"}
    request = urllib.request.Request(f"{endpoint}/{name}", method="PUT", headers=sign)
    with urllib.request.urlopen(request) as response:
        if response.status != 200:
            raise RuntimeError(f"no bucket was made: status {response.status}")


def free_port() -> int:
    """A port of localhost that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
