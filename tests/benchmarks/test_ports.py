"""Free ports."""

import socket

from benchmarks.ports import free_ports


def test_ports_in_a_row_are_free() -> None:
    first = free_ports(3)
    for port in range(first, first + 3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
