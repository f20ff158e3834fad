"""Pieces of texts, and what the packages hold."""

from __future__ import annotations

from benchmarks.quality.texts import (
    Piece,
    cut,
    dialogue,
)


def test_pieces_are_whole_and_follow_each_other() -> None:
    assert cut("prose", range(10), 4, 5) == [Piece("prose", [0, 1, 2, 3]), Piece("prose", [4, 5, 6, 7])]
    assert cut("prose", range(8), 4, 1) == [Piece("prose", [0, 1, 2, 3])]
    assert len(cut("prose", range(8), 4, 5)) == 2
    assert cut("prose", range(3), 4, 5) == []


def test_in_each_conversation_user_and_assistant_take_turns() -> None:
    content = "categories: [x]\nconversations:\n- - How are you?\n  - Well .\n  - Good.\n- - 7\n  - 'Yes: 7'\n"
    assert [(said["role"], said["content"]) for said in dialogue(content)] == [
        ("user", "How are you?"),
        ("assistant", "Well ."),
        ("user", "Good.\n7"),
        ("assistant", "Yes: 7"),
    ]
