import pytest

from agentmem.sizes import byte_size


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
