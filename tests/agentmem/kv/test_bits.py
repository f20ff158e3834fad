from itertools import product

import pytest
from pydantic import TypeAdapter, ValidationError

from agentmem.kv.bits import BITS, KVBits, KVBitsText

WRITTEN = TypeAdapter(KVBitsText)


@pytest.mark.parametrize("bits", list(product(BITS, BITS)))
def test_each_pair_has_one_text(bits: tuple[int, int]) -> None:
    text = str(KVBits(*bits))
    assert KVBits.parse(text) == KVBits(*bits)
    assert WRITTEN.validate_python(text) == text
    assert ("/" in text) == (bits[0] != bits[1])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("4/4", "4"),
        ("4w4", "4"),
        ("5/4w5/4", "5/4"),
        ("4w6/6", "4w6"),
        ("5/4w8/6", "5/4w8/6"),
        (8, "8"),
        (4, "4"),
        ("8/4", "8/4"),
        (3, "3"),
        ("auto", "auto"),
    ],
)
def test_other_spellings(given: object, text: str) -> None:
    assert WRITTEN.validate_python(given) == text


@pytest.mark.parametrize(
    "given",
    [
        "",
        "7",
        "2",
        "16",
        "/",
        "5/",
        "/4",
        "4/4/4",
        " 4",
        "4 ",
        "5 / 4",
        "04",
        "+4",
        "4.0",
        "four",
        "auto",
        "４",
        "4w",
        "w6",
        "4w6w8",
        "4 w6",
    ],
)
def test_what_is_refused_is_told_what_to_give(given: str) -> None:
    with pytest.raises(
        ValueError, match=r'as "4", or of each, as "5/4"; each 3, 4, 5, 6 or 8; "4w6" has 6 in sliding windows$'
    ):
        KVBits.parse(given)


@pytest.mark.parametrize("given", [True, False, 4.0, None, [4], 7, -4, b"4"])
def test_what_is_neither_text_nor_such_a_number(given: object) -> None:
    with pytest.raises(ValidationError, match="bits of K and V"):
        WRITTEN.validate_python(given)
