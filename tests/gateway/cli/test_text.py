from datetime import UTC, datetime

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.text import age, counted, iso_time, printable


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s ago"), (61, "1 min ago"), (7300, "2 h ago"), (200000, "2 d ago")]
)
def test_age(seconds: int, text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert age(Timestamp(seconds=int(now.timestamp()) - seconds), now) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 turns"), (1, "1 turn"), (1200, "1,200 turns")])
def test_counts(number: int, text: str) -> None:
    assert counted(number, "turn") == text


def test_no_time() -> None:
    assert age(Timestamp(), datetime.now(UTC)) == "never"
    assert iso_time(Timestamp()) is None
    assert iso_time(Timestamp(seconds=1)) == "1970-01-01T00:00:01.000+00:00"


@given(st.text())
def test_nothing_steers_the_terminal(text: str) -> None:
    assert printable(text).isprintable()


def test_printable_keeps_what_it_is_told() -> None:
    assert printable("é🌍\x1b[31m\n\t", keep="\n") == "é🌍\\x1b[31m\n\\t"
