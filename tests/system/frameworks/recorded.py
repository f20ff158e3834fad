"""Requests as Open WebUI 0.12 sends them, by its source: it is no package to be installed here."""

from typing import Any

TOOL = {
    "name": "get_weather",
    "description": "How the weather is.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"city": {"description": "Where", "type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "eager_input_streaming": True,
}


OPEN_WEBUI_HEADERS = {
    "content-type": "application/json",
    "x-openwebui-user-name": "Ada%20L",
    "x-openwebui-user-id": "5f2c",
    "x-openwebui-user-email": "ada@example.org",
    "x-openwebui-user-role": "admin",
    "x-openwebui-chat-id": "9b1d",
}


def open_webui(model: str, *said: dict[str, str], **parameters: Any) -> dict[str, Any]:
    """An answer in a chat."""
    return {
        "stream": True,
        "model": model,
        "messages": list(said),
        "stream_options": {"include_usage": True},
        **parameters,
    }


def open_webui_task(model: str, text: str, **parameters: Any) -> dict[str, Any]:
    """A title, tags or follow-up questions, by a prompt of its own that has the chat in it."""
    task = f"### Task:\nGenerate it.\n### Chat History:\n<chat_history>\nUSER: {text}\n</chat_history>"
    return {"model": model, "messages": [{"role": "user", "content": task}], "stream": False, **parameters}
