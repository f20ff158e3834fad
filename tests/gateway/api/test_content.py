"""Content that is no text: words stand in its place, and the conversation goes on."""

from typing import Any

import pytest

from gateway.api.exchange import Exchange

from . import dialects

IMAGE = "[image left out: this model reads text only]"
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"}}


def chat(*messages: Any) -> Exchange:
    return dialects.exchange("chat", messages=messages)


def claude(*messages: Any) -> Exchange:
    return dialects.exchange("messages", messages=messages)


def said(exchange: Exchange) -> list[str]:
    return [message.content for message in exchange.turns[0].messages.messages]


def test_images_in_chats() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR", "detail": "low"}}
    call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
    exchange = chat(
        {"role": "user", "content": [{"type": "text", "text": "What is this? "}, image, image]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [image]},
    )
    assert said(exchange) == [f"What is this? {IMAGE}{IMAGE}", "", IMAGE]
    assert exchange.left_out == ["2 images"], "what tools give is left out without a word"


def test_images_in_results_of_claudes_tools() -> None:
    exchange = claude(
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [PICTURE]}]},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": [PICTURE, {"type": "text", "text": "And this?"}]},
    )
    assert said(exchange) == ["look", "", IMAGE, "I see.", f"{IMAGE}And this?"]
    assert exchange.left_out == ["image"]


def test_images_in_responses() -> None:
    exchange = dialects.exchange(
        "responses",
        input=[
            {
                "role": "user",
                "content": [{"type": "input_image", "image_url": "x"}, {"type": "input_file", "file_id": "f"}],
            },
            {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "x"}]},
        ],
    )
    file = "[file left out: this model reads text only]"
    assert said(exchange) == [f"{IMAGE}{file}", "", IMAGE]
    assert exchange.left_out == ["image", "file"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "It is green."}, "Notes\nIt is green."),
        ({"type": "content", "content": [{"type": "text", "text": "It is green."}]}, "Notes\nIt is green."),
        ({"type": "content", "content": "It is green."}, "Notes\nIt is green."),
        ({"type": "url", "url": "https://x"}, "Notes\n[document left out: this model reads text only]"),
    ],
)
def test_documents_of_text_are_read(source: Any, text: str) -> None:
    document = {"type": "document", "source": source, "title": "Notes"}
    assert said(claude({"role": "user", "content": [document]})) == [text]


def test_what_others_searched_and_thought_is_left_out() -> None:
    found = {"type": "search_result", "source": "u", "title": "t", "content": [{"type": "text", "text": "It rains."}]}
    used = {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {}}
    exchange = claude(
        {"role": "user", "content": [found]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, used]},
        {"role": "user", "content": "Well?"},
    )
    assert said(exchange) == ["t\nu\nIt rains.", "", "Well?"]
