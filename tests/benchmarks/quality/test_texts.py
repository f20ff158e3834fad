"""Pieces of texts, and what the packages hold."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.quality.texts import (
    Piece,
    cut,
    dialogue,
    tool_calls,
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


def test_what_a_tool_found_is_asked_for_later() -> None:
    def country(code: str, capital: list[str]) -> dict[str, Any]:
        fields = dict.fromkeys(("region", "languages", "currencies", "latlng", "demonyms"), "x")
        return {
            "cca3": code,
            "name": {"common": f"Land {code}"},
            "capital": capital,
            "borders": ["QQQ"],
            "area": 1200,
            **fields,
        }

    said = tool_calls([country("AAA", ["Aville"]), country("BBB", ["Beeton", "Beehaven"])])
    assert [message["role"] for message in said] == ["user", "assistant"] * 6
    call = json.loads(said[1]["content"].removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert (call["name"], call["arguments"]["code"]) == ("get_country", "AAA")
    result = json.loads(said[2]["content"].removeprefix("<tool_response>").removesuffix("</tool_response>"))
    assert result["capital"] == ["Aville"] and set(result) == {"code", *call["arguments"]["fields"]}
    assert said[3]["content"] == "Land AAA has 1 neighbours and 1,200 square kilometres."
    assert [message["content"] for message in said[8:]] == [
        "What is the capital of Land BBB?", "Beeton and Beehaven.", "What is the capital of Land AAA?", "Aville."
    ]  # fmt: skip
