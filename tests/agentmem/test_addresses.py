import socket
from pathlib import Path

import pytest

from agentmem.addresses import Address, is_loopback, parse_address
from agentmem.process.settings import ServiceSettings, SettingsError, load
from agentmem.process.sockets import listens
from cache_service.settings import StoreSettings
from gateway.cli.up.settings import UpSettings
from gateway.settings import GatewaySettings
from inference_service.settings import WorkerSettings


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:9", Address("::1", 9)),
    ],
)
def test_parse_and_print(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "8080", ":8080", "host:", "host:x", "host:65536", "::1:80", "host:-1", "host:٣"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


def test_offset_leaves_any_port_alone() -> None:
    assert Address("127.0.0.1", 9464).offset(2) == ("127.0.0.1", 9466)
    assert Address("127.0.0.1", 0).offset(2) == ("127.0.0.1", 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.nip.io"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


LISTENING = [
    (GatewaySettings, "http", "tcp"),
    (GatewaySettings, "grpc", "tcp"),
    (GatewaySettings, "metrics", "tcp"),
    (UpSettings, "http", "tcp"),
    (UpSettings, "grpc", "tcp"),
    (UpSettings, "metrics", "tcp"),
    (WorkerSettings, "listen", "unix"),
    (WorkerSettings, "metrics", "tcp"),
    (StoreSettings, "listen", "unix"),
    (StoreSettings, "metrics", "tcp"),
]


@pytest.mark.parametrize(("settings", "name", "kind"), LISTENING)
def test_nobody_unasked_listens_to_the_world(settings: type[ServiceSettings], name: str, kind: str) -> None:
    for address in ("0.0.0.0:5000", "[::]:5000", "example.org:5000", "nowhere", "127.0.0.1:65536", "unix:"):
        with pytest.raises(SettingsError, match=f"^{name}: "):
            load(settings, [f"--{name}", address])
    fine = ["127.0.0.1:1", "[::1]:9464", "localhost:0"] if kind == "tcp" else ["unix:/run/x.sock", ""]
    for address in fine:
        assert getattr(load(settings, [f"--{name}", address]), name) == address


def test_every_address_to_listen_on_is_checked() -> None:
    listening = {"listen", "http", "grpc", "metrics"}
    for settings in (GatewaySettings, UpSettings, WorkerSettings, StoreSettings):
        named = {name for name in settings.model_fields if name in listening}
        assert named == {name for known, name, _ in LISTENING if known is settings}


def test_server_listens_until_it_is_gone(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/s"
    assert not listens(target)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/s")
        assert not listens(target)
        server.listen()
        assert listens(target)
    assert not listens(target), "its socket is left"
    assert not listens(f"unix:/{'x' * 200}")
