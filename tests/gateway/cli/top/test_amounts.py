import pytest

from gateway.cli.top import amounts


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (amounts.count(1234), "1,234"),
        (amounts.count(None), "–"),
        (amounts.rate(0.0), "0"),
        (amounts.rate(0.0003), "<0.01"),
        (amounts.rate(0.04), "0.04"),
        (amounts.rate(3.21), "3.2"),
        (amounts.rate(9.96), "10"),
        (amounts.rate(12400.4), "12,400"),
        (amounts.rate(None), "–"),
        (amounts.share(0.925), "92 %"),
        (amounts.share(0.999), "99 %"),
        (amounts.share(1.0), "100 %"),
        (amounts.share(0.0001), "1 %"),
        (amounts.share(0.0), "0 %"),
        (amounts.share(None), "–"),
        (amounts.time(0.00081), "0.8 ms"),
        (amounts.time(0.025), "25 ms"),
        (amounts.time(1.23), "1.2 s"),
        (amounts.time(300.0), "300 s"),
        (amounts.time(None), "–"),
        (amounts.size(9_437_184.0), "9.4 MB"),
        (amounts.size(None), "–"),
    ],
)
def test_written(written: str, told: str) -> None:
    assert written == told
