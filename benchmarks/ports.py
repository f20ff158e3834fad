"""Ports for services."""

import secrets
import socket


def free_ports(count: int, among: range = range(30_000, 32_000)) -> int:
    """Return the first of so many free ports in a row, below those of outgoing connections and above those of tests."""
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
