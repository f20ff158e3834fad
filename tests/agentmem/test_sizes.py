import pytest

from agentmem.sizes import binary_size, byte_size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_437_184, "9.4 MB"),
        (999_600, "1.0 MB"),
        (5 * 10**15, "5000.0 TB"),
    ],
)
def test_byte_size(count: int, text: str) -> None:
    assert byte_size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (9_999, "9999 bytes"),
        (10_000, "9 KiB"),
        (1 << 30, "1024 MiB"),
        (9_999 << 20, "9999 MiB"),
        (10_000 << 20, "9 GiB"),
        (10_240 << 30, "10 TiB"),
    ],
)
def test_binary_size(count: int, text: str) -> None:
    assert binary_size(count) == text
