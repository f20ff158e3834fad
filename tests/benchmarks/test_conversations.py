"""Agents that know what is in their ledger."""

from benchmarks.conversations import Conversation
from benchmarks.turns import Turn


def test_a_conversation_grows_by_what_was_asked_and_what_was_generated() -> None:
    conversation = Conversation("a")
    first = conversation.prompt(10)
    conversation.heard(first, Turn(token_ids=[7, 8]))
    second = conversation.prompt(3)
    assert second[:12] == [*first, 7, 8]
    assert len(second) == 15
    assert second[12:] != first[:3]


def test_agents_share_no_block() -> None:
    assert Conversation("a").prompt(256)[:4] != Conversation("b").prompt(256)[:4]
