"""Conversations by content: the hash chain by which FindAgent finds candidates."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentmem import jsonsize, jsontext
from agentmem.errors import InvalidArgument
from agentmem.limits import MAX_TOOLS
from agentmem.v1 import types_pb2

HASH_BYTES = 16
_PERSON = b"agentmem.message"
_TOOLS_PERSON = b"agentmem.tools"
_ARGUMENTS_PERSON = b"agentmem.args"


def chain_of(messages: types_pb2.Messages) -> list[bytes]:
    """Raises InvalidArgument."""
    return message_hashes(template_messages(messages), template_tools(messages), template_arguments(messages))


def message_hashes(
    messages: Iterable[Mapping[str, Any]], tools: Sequence[Any] = (), arguments: Mapping[str, Any] | None = None
) -> list[bytes]:
    """Return a hash of 16 bytes per message: of the hash before, role, text and other members.

    The first message's hash before is that of `tools` and `arguments`, which templates put before the messages. These
    are equal: a list of text parts and their joined text; no content and empty content; null and an absent member; no
    calls and an empty list; a call's arguments as object and as JSON text. Reasoning is left out: clients may not send
    it back.
    """
    chain: list[bytes] = []
    before = b""
    for beginning, person in ((list(tools), _TOOLS_PERSON), (dict(arguments or {}), _ARGUMENTS_PERSON)):
        if beginning:
            before = hashlib.blake2b(before + _canonical(beginning), digest_size=HASH_BYTES, person=person).digest()
    for message in messages:
        apart = ("role", "content", *(["reasoning_content"] if message.get("role") == "assistant" else []))
        rest = {name: value for name, value in message.items() if name not in apart and value is not None}
        if calls := with_arguments(rest.pop("tool_calls", None)):
            rest["tool_calls"] = calls
        role = str(message.get("role", "")).encode(errors="surrogatepass")
        parts = (before, role, _content(message.get("content")), _canonical(rest))
        state = hashlib.blake2b(digest_size=HASH_BYTES, person=_PERSON)
        for part in parts:
            state.update(len(part).to_bytes(8, "little") + part)
        before = state.digest()
        chain.append(before)
    return chain


def template_messages(chat: types_pb2.Messages, field: str = "messages") -> tuple[Mapping[str, Any], ...]:
    """Return messages as chat templates take them. Raises InvalidArgument."""
    if not chat.messages:
        raise InvalidArgument(field, "must have at least one message")
    calls = (message.tool_calls_json for message in chat.messages)
    jsonsize.check_together(field, (*calls, chat.tools_json, chat.template_arguments_json))
    return tuple(_message(f"{field}.messages[{i}]", message) for i, message in enumerate(chat.messages))


def template_tools(chat: types_pb2.Messages, field: str = "messages") -> tuple[Mapping[str, Any], ...]:
    tools = jsontext.parse(f"{field}.tools_json", chat.tools_json, list) if chat.HasField("tools_json") else []
    if not all(isinstance(tool, dict) for tool in tools):
        raise InvalidArgument(f"{field}.tools_json", "must be an array of objects")
    if len(tools) > MAX_TOOLS:
        raise InvalidArgument(f"{field}.tools_json", f"must have at most {MAX_TOOLS} tools, has {len(tools)}")
    return tuple(tools)


def template_arguments(chat: types_pb2.Messages, field: str = "messages") -> Mapping[str, Any]:
    if not chat.HasField("template_arguments_json"):
        return {}
    arguments: Mapping[str, Any] = jsontext.parse(
        f"{field}.template_arguments_json", chat.template_arguments_json, dict
    )
    return arguments


def with_arguments(calls: Any) -> Any:
    """Return OpenAI's calls with arguments as objects; other shapes are unchanged."""
    return [_with_arguments(call) for call in calls] if isinstance(calls, list | tuple) else calls


def _with_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    arguments = jsontext.object_or_text(function["arguments"])
    return {**call, "function": {**function, "arguments": arguments}}


def _message(field: str, message: types_pb2.ChatMessage) -> Mapping[str, Any]:
    if not message.role:
        raise InvalidArgument(f"{field}.role", "must not be empty")
    converted: dict[str, Any] = {"role": message.role, "content": message.content}
    for name in ("name", "reasoning_content", "tool_call_id"):
        if message.HasField(name):
            converted[name] = getattr(message, name)
    if message.HasField("tool_calls_json"):
        calls = jsontext.parse(f"{field}.tool_calls_json", message.tool_calls_json, list)
        converted["tool_calls"] = with_arguments(calls)
    return converted


def _content(content: Any) -> bytes:
    if content is None:
        content = ""
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and part.keys() == {"type", "text"} and part["type"] == "text" for part in content
    ):
        content = "".join(str(part["text"]) for part in content)
    return b"t" + content.encode(errors="surrogatepass") if isinstance(content, str) else b"j" + _canonical(content)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
