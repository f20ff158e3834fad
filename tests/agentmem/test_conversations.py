"""The hash chain of messages: what makes a message another one, and what does not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.conversations import HASH_BYTES, message_hashes

USER = {"role": "user", "content": "hello"}

texts = st.text(st.characters(exclude_categories=()), max_size=8)
messages = st.fixed_dictionaries({"role": texts, "content": texts}, optional={"name": texts})


def one(**message: Any) -> bytes:
    return message_hashes([message])[0]


@given(first=st.lists(messages, max_size=4), second=st.lists(messages, max_size=4))
def test_chains_agree_exactly_as_far_as_the_messages_do(first: list[Any], second: list[Any]) -> None:
    a, b = message_hashes(first), message_hashes(second)
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    assert a[:common] == b[:common]
    assert not set(a[common:]) & set(b[common:]) or first == second
    assert all(len(value) == HASH_BYTES for value in a) and len(set(a)) == len(a)


@pytest.mark.parametrize(
    "same",
    [
        {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
        {"content": "hello", "role": "user"},
        {"role": "user", "content": "hello", "name": None},
    ],
)
def test_what_says_the_same_is_the_same(same: dict[str, Any]) -> None:
    assert message_hashes([same]) == message_hashes([USER])


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "hello "},
        {"role": "userh", "content": "ello"},
        {"role": "user", "content": "hello", "name": "a"},
        {"role": "user", "content": '[{"type":"text","text":"hello"}]'},
        {"role": "user", "content": [{"type": "image", "text": "hello"}]},
        {"role": "user", "content": [{"type": "text", "text": "hello", "x": 1}]},
        {"role": "user", "content": ""},
    ],
)
def test_what_says_something_else_is_another(other: dict[str, Any]) -> None:
    assert message_hashes([other]) != message_hashes([USER])


def test_nothing_said_is_an_empty_content() -> None:
    assert (
        one(role="assistant", n=1) == one(role="assistant", content=None, n=1) == one(role="assistant", content="", n=1)
    )


def test_the_chain_is_what_it_was() -> None:
    """A chain that is stored must mean the same to every later version."""
    chain = message_hashes([USER, {"role": "assistant", "content": "hi", "n": 1}])
    assert [value.hex() for value in chain] == ["a278028547ce0b1cb37fbd9de43ec35a", "c594de5a5fffc88c0f488d01fe947d5a"]
