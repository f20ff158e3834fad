import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem import jsonsize
from agentmem.errors import InvalidArgument
from agentmem.jsonsize import Size

TEXTS = st.text(st.sampled_from(['"', "\\", ",", "[", "{", "a", "é", "\n"]), max_size=6)
JSON = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
ROOM = 10**9


def size_of(value: Any) -> Size:
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    inner = [size_of(part) for part in parts]
    names = len(value) if isinstance(value, dict) else 0
    is_container = isinstance(value, dict | list)
    return Size(
        max(0, len(parts) - 1) + is_container + sum(one.values for one in inner),
        names + isinstance(value, str) + sum(one.texts for one in inner),
        is_container + sum(one.containers for one in inner),
    )


def is_taken(text: bytes, most: Size) -> bool:
    try:
        jsonsize.check("f", text, most)
    except InvalidArgument:
        return False
    return True


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1024])
@given(value=JSON, escaped=st.booleans(), spread=st.booleans())
def test_exactly_what_is_there_is_counted(piece: int, value: Any, escaped: bool, spread: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=1 if spread else None).encode()
    size = size_of(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jsonsize, "_PIECE", piece)
        assert is_taken(text, size)
        for place, held in enumerate(size):
            if held:
                assert not is_taken(text, Size(*(held - 1 if place == one else ROOM for one in range(3))))


@given(JSON)
def test_a_value_is_counted_on_all_its_levels(value: Any) -> None:
    def held(one: Any) -> int:
        parts = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        return len(parts) + sum(map(held, parts))

    whole = held(value)
    assert jsonsize.count(value, whole) == whole
    if whole:
        assert jsonsize.count(value, whole - 1) > whole - 1
