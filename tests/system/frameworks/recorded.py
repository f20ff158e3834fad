"""Requests as two programs send them that are no packages to be installed here: Claude Code and Open WebUI.

Of Claude Code 2.1 by its users' logs of what it sends to gateways, of Open WebUI 0.12 by its source. What is long and
changes nothing, such as the system prompt and most tools, is shortened.
"""

from typing import Any

CLAUDE_BETAS = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,"
    "prompt-caching-scope-2026-01-05,effort-2025-11-24,some-beta-2099-01-01"
)
CLAUDE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": CLAUDE_BETAS,
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
    "user-agent": "claude-cli/2.1.177 (external, cli)",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600",
}
CACHED = {"cache_control": {"type": "ephemeral"}}
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


def claude_code(model: str, checksum: str, *said: dict[str, Any]) -> dict[str, Any]:
    """One step of a session; the checksum is another one each time. The mark for the cache is on the last message."""
    *before, last = said
    blocks = [{"type": "text", "text": last["content"]}] if isinstance(last["content"], str) else last["content"]
    marked = {**last, "content": [*blocks[:-1], {**blocks[-1], **CACHED}]}
    accounting = f"x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={checksum};"
    return {
        "model": model,
        "messages": [*before, marked],
        "system": [
            {"type": "text", "text": accounting},
            {
                "type": "text",
                "text": "You are Claude Code, Anthropic's official CLI for Claude.",
                "cache_control": {"type": "ephemeral", "scope": "global"},
            },
            {"type": "text", "text": "\nYou are an interactive agent that helps users.", **CACHED},
        ],
        "tools": [TOOL],
        "metadata": {
            "user_id": '{"device_id":"' + 64 * "0" + '","account_uuid":"",'
            '"session_id":"7a0f8a0e-3d5c-4b43-9a1e-0a3f2b1c4d5e"}'
        },
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stream": True,
    }


def claude_code_title(model: str) -> dict[str, Any]:
    """What it asks the small model for: a title of the session, as JSON."""
    title = {"type": "object", "properties": {"title": {"type": "string", "enum": ["A"]}}, "required": ["title"]}
    return {
        "model": model,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "system": [{"type": "text", "text": "Generate a concise title."}],
        "tools": [],
        "metadata": {"user_id": "user_0_account__session_1"},
        "max_tokens": 32000,
        "thinking": {"type": "disabled"},
        "temperature": 1,
        "output_config": {"format": {"type": "json_schema", "schema": {**title, "additionalProperties": False}}},
        "stream": True,
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
