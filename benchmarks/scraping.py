"""A service's page of metrics, read by a benchmark, and ports for services."""

import asyncio
import secrets
import socket
import time
import urllib.request

from gateway.pages import Page


async def scrape(url: str) -> Page:
    """Read a page. Raises OSError, and ValueError where it is none of metrics."""
    return Page.parse(await asyncio.to_thread(_text, url), time.monotonic())


def free_ports(count: int, among: range = range(30_000, 32_000)) -> int:
    """The first of so many free ports in a row, below those of outgoing connections and above those of tests."""
    while True:
        first = among.start + secrets.randbelow(len(among) - count)
        if all(_free(port) for port in range(first, first + count)):
            return first


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())
