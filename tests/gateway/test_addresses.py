import pytest

from gateway.addresses import Address, is_loopback, parse_address


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
