import errno
import socket
import urllib.error
import urllib.request
from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry, Counter

from agentmem.process.exposition import MetricsServer
from agentmem.process.sockets import AddressError


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("turns", "Turns.", registry=registry).inc(3)
    return registry


def page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
        return str(response.read().decode())


def test_serves_one_registry(registry: CollectorRegistry) -> None:
    server = MetricsServer("127.0.0.1:0", registry)
    try:
        assert not server.address.endswith(":0")
        assert "turns_total 3.0" in page(server.address)
        assert "python_info" not in page(server.address), "the default registry is another one"
    finally:
        server.stop()
    with pytest.raises(urllib.error.URLError):
        page(server.address)
    server.stop()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:9464", 200),
        ("127.0.0.2", 200),
        ("[::1]:9464", 200),
        ("host.docker.internal:9464", 200),
        ("evil.example", 421),
        ("evil.example:9464", 421),
        ("127.0.0.1.evil.example", 421),
        ("internal.evil.example", 421),
        ("evil.example@localhost", 421),
        ("", 421),
    ],
)
def test_answers_to_this_machines_names(registry: CollectorRegistry, host: str, status: int) -> None:
    server = MetricsServer("127.0.0.1:0", registry)
    connection = HTTPConnection(server.address, timeout=30)
    try:
        connection.request("GET", "/metrics", headers={"Host": host})
        answer = connection.getresponse()
        assert (answer.status, b"turns_total" in answer.read()) == (status, status == 200)
    finally:
        connection.close()
        server.stop()


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_ipv6(registry: CollectorRegistry) -> None:
    server = MetricsServer("[::1]:0", registry)
    try:
        assert server.address.startswith("[::1]:")
        assert "turns_total 3.0" in page(server.address)
    finally:
        server.stop()


def test_an_address_that_is_taken(registry: CollectorRegistry) -> None:
    server = MetricsServer("127.0.0.1:0", registry)
    try:
        with pytest.raises(AddressError, match="--metrics"):
            MetricsServer(server.address, registry)
        assert "turns_total" in page(server.address)
    finally:
        server.stop()
    again = MetricsServer(server.address, registry)
    again.stop()


def test_an_empty_address_serves_nothing(registry: CollectorRegistry) -> None:
    server = MetricsServer("", registry)
    assert server.address == ""
    server.stop()


def test_it_stops_where_its_thread_cannot_be_woken(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    server = MetricsServer("127.0.0.1:0", registry)
    monkeypatch.setattr(socket, "create_connection", no_descriptor)
    server.stop()
