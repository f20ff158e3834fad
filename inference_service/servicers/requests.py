"""Requests as checked domain values; mistakes are named by field."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np

from agentmem import jsontext
from agentmem.conversations import template_arguments, template_messages, template_tools
from agentmem.errors import InvalidArgument
from agentmem.limits import check_sampling
from agentmem.v1 import agent_pb2, inference_pb2, types_pb2
from agentmem.validation import (
    MAX_REQUEST_ID_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_STOP_BYTES,
    MAX_TOP_LOGPROBS,
    AgentKey,
    IdleTimes,
    check_revision,
    check_text,
)
from inference_service.domain import (
    AppendInput,
    HeldAnswer,
    HeldTool,
    MessagesInput,
    TextInput,
    TokensInput,
    TurnInput,
    TurnRequest,
)
from inference_service.text import json_schema, template

_FIELD: Final = "tool_choice"
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""OpenAI's meaning of missing parameters."""


def held_answer(
    request: inference_pb2.GenerateRequest, schema: str | None, tools: Sequence[Mapping[str, Any]]
) -> HeldAnswer | None:
    """Return what calls are held to, if anything; text fits `schema`. Raises InvalidArgument. Grammars check
    schemas.
    """
    choice = request.tool_choice
    if not request.HasField(_FIELD) and not (request.tool_calls and schema is not None and tools):
        return None
    if not request.tool_calls:
        raise InvalidArgument(_FIELD, "needs tool_calls to be set")
    if not tools:
        raise InvalidArgument(_FIELD, "needs messages.tools_json to have tools")
    if request.sampling.ignore_eos:
        raise InvalidArgument("sampling.ignore_eos", "cannot be set where calls are held to their tools")
    field = "append.messages.tools_json" if request.WhichOneof("input") == "append" else "messages.tools_json"
    strict = frozenset(choice.strict)
    held = {tool.name: tool for tool in (_tool(field, i, tool, strict) for i, tool in enumerate(tools))}
    if len(held) < len(tools):
        raise InvalidArgument(field, "two tools have one name, so calls cannot be held to them")
    for part, names in (("names", choice.names), ("strict", choice.strict)):
        if not held.keys() >= set(names):
            raise InvalidArgument(f"{_FIELD}.{part}", "names a tool that is not among the tools")
    callable_tools = tuple(held[name] for name in held if not choice.names or name in choice.names)
    return HeldAnswer(callable_tools, choice.required, choice.single, schema)


def _tool(field: str, index: int, tool: Mapping[str, Any], strict: frozenset[str]) -> HeldTool:
    """Raises InvalidArgument for another shape than OpenAI's."""
    field = f"{field}[{index}]"
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name or not isinstance(parameters, Mapping | None):
        raise InvalidArgument(field, "must be a function in OpenAI's shape, for calls to be held to it")
    arguments = json.dumps(_of_an_object(field, parameters), ensure_ascii=False)
    if len(arguments.encode()) > MAX_SCHEMA_BYTES:
        raise InvalidArgument(field, f"its parameters must have at most {MAX_SCHEMA_BYTES} bytes")
    return HeldTool(name, arguments, field, name in strict)


def _of_an_object(field: str, parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if parameters is None:
        return _NO_PARAMETERS
    kinds = parameters.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise InvalidArgument(field, 'its parameters must be of type "object"')
    return {**parameters, "type": "object"}


_RESERVED_ARGUMENTS = (
    frozenset(("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt", "tokenize"))
    | frozenset(("continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict"))
    | frozenset(("sanitize_control_tokens", "return_assistant_tokens_mask", "tokenizer_kwargs"))
)
"""Arguments of transformers' `apply_chat_template`, and those with own fields."""
_MAX_CALL_ID_BYTES: Final = 64 * 1024
"""Some servers sign thoughts in ids of calls."""
_NOT_REPEATED = {"request_id", "if_version", "if_revision", "memory_mode", "expiry", "context_policy"}


def generate_request(request: inference_pb2.GenerateRequest) -> TurnRequest:
    """Raises InvalidArgument."""
    if not request.key.agent_id and request.WhichOneof("input") == "append":
        raise InvalidArgument("append", "needs an agent_id: without a memory there is nothing to append to")
    if request.HasField("max_tokens") and request.max_tokens < 1:
        raise InvalidArgument("max_tokens", "must be at least 1; use Prefill to generate nothing")
    if request.HasField("top_logprobs") and request.top_logprobs > MAX_TOP_LOGPROBS:
        raise InvalidArgument("top_logprobs", f"must be at most {MAX_TOP_LOGPROBS}")
    _check_enum("cache_policy", request.cache_policy, inference_pb2.CachePolicy)
    check_sampling(request.sampling)
    turn = prefill_request(request)
    schema = _json_schema(request) if request.HasField("json_schema") else None
    return replace(
        turn,
        sampling=request.sampling,
        stop=tuple(check_text(f"stop[{i}]", stop, max_bytes=MAX_STOP_BYTES) for i, stop in enumerate(request.stop)),
        max_tokens=request.max_tokens if request.HasField("max_tokens") else None,
        cache_policy=request.cache_policy or inference_pb2.CACHE_POLICY_KEEP,
        top_logprobs=request.top_logprobs if request.HasField("top_logprobs") else None,
        generates=True,
        tool_calls=request.tool_calls,
        json_schema=schema,
        held=held_answer(request, schema, turn.tools),
    )


def prefill_request(request: inference_pb2.PrefillRequest | inference_pb2.GenerateRequest) -> TurnRequest:
    """Return what all turns say, generating nothing. Raises InvalidArgument."""
    _check_enum("context_policy", request.context_policy, types_pb2.ContextPolicy)
    _check_enum("memory_mode", request.memory_mode, inference_pb2.MemoryMode)
    if request.memory_mode == inference_pb2.MEMORY_MODE_REPLACE and request.WhichOneof("input") == "append":
        raise InvalidArgument("memory_mode", "cannot be REPLACE with append, which leaves what is there")
    return TurnRequest(
        key=AgentKey.from_proto(request.key, anonymous=isinstance(request, inference_pb2.GenerateRequest)),
        input=turn_input(request),
        digest=_digest(request),
        request_id=check_text("request_id", request.request_id, max_bytes=MAX_REQUEST_ID_BYTES, allow_empty=True),
        if_version=request.if_version if request.HasField("if_version") else None,
        if_revision=check_revision("if_revision", request.if_revision),
        parse_special=request.parse_special,
        generates=False,
        template_time=_template_time(request.template_time),
        label=check_text("label", request.label, allow_empty=True),
        expiry=IdleTimes.from_proto(request.expiry, "expiry."),
        context_policy=request.context_policy,
        memory_mode=request.memory_mode or inference_pb2.MEMORY_MODE_REPLACE,
    )


def probe_request(request: agent_pb2.ProbeAgentRequest) -> TurnRequest:
    """Raises InvalidArgument."""
    return TurnRequest(
        key=AgentKey.from_proto(request.key),
        input=turn_input(request),
        digest=b"",
        parse_special=request.parse_special,
        template_time=_template_time(request.template_time),
    )


def turn_input(request: Any) -> TurnInput:
    """Raises InvalidArgument."""
    match request.WhichOneof("input"):
        case "messages":
            return _messages("messages", request.messages)
        case "prompt":
            return _text("prompt", request.prompt)
        case "token_ids":
            if not request.token_ids.ids:
                raise InvalidArgument("token_ids.ids", "must not be empty")
            return TokensInput(np.array(request.token_ids.ids, np.uint32))
        case "append":
            match request.append.WhichOneof("content"):
                case "text":
                    return AppendInput(_text("append.text", request.append.text))
                case "messages":
                    return AppendInput(_messages("append.messages", request.append.messages))
            raise InvalidArgument("append.content", "give text or messages")
    raise InvalidArgument("input", "give exactly one of messages, prompt, append and token_ids")


def _text(field: str, text: str) -> TextInput:
    if not text:
        raise InvalidArgument(field, "must not be empty")
    return TextInput(text)


def _messages(field: str, chat: types_pb2.Messages) -> MessagesInput:
    _check_names(field, chat)
    messages, tools = template_messages(chat, field), template_tools(chat, field)
    arguments = template_arguments(chat, field)
    if reserved := sorted(_RESERVED_ARGUMENTS & arguments.keys()):
        raise InvalidArgument(f"{field}.template_arguments_json", f"{', '.join(reserved)} cannot be set here")
    _check_enum(f"{field}.history", chat.history, types_pb2.History)
    return MessagesInput(messages, tools, arguments, chat.history or types_pb2.HISTORY_MEMORY)


def _check_names(field: str, chat: types_pb2.Messages) -> None:
    for index, message in enumerate(chat.messages):
        at = f"{field}.messages[{index}]"
        check_text(f"{at}.role", message.role)
        check_text(f"{at}.name", message.name, allow_empty=True)
        check_text(f"{at}.tool_call_id", message.tool_call_id, max_bytes=_MAX_CALL_ID_BYTES, allow_empty=True)


def _json_schema(request: inference_pb2.GenerateRequest) -> str:
    if len(request.json_schema.encode()) > MAX_SCHEMA_BYTES:
        raise InvalidArgument(json_schema.FIELD, f"must have at most {MAX_SCHEMA_BYTES} bytes")
    json_schema.check(jsontext.parse(json_schema.FIELD, request.json_schema, dict))
    if request.sampling.ignore_eos:
        raise InvalidArgument("sampling.ignore_eos", "cannot be set with json_schema, whose text ends with the JSON")
    return request.json_schema


def _template_time(moment: str) -> str:
    return template.parse_moment("template_time", moment) if moment else ""


def _check_enum(field: str, value: int, enum: Any) -> None:
    if value not in enum.values():
        raise InvalidArgument(field, f"{value} is not a {enum.DESCRIPTOR.name}")


def _digest(request: inference_pb2.GenerateRequest | inference_pb2.PrefillRequest) -> bytes:
    """Return a hash of what is asked, without _NOT_REPEATED. Messages are serialized one by one: a large chat at once
    would hold the interpreter for 20 ms.
    """
    arguments = cast(Any, type(request)())
    arguments.CopyFrom(request)
    for name in _NOT_REPEATED & set(arguments.DESCRIPTOR.fields_by_name):
        arguments.ClearField(name)
    digest = hashlib.sha256(arguments.DESCRIPTOR.full_name.encode() + b"\0")
    chat = arguments.append.messages if arguments.WhichOneof("input") == "append" else arguments.messages
    for message in chat.messages:
        data = message.SerializeToString(deterministic=True)
        digest.update(len(data).to_bytes(8, "little") + data)
    if len(chat.messages):
        del chat.messages[:]
    digest.update(arguments.SerializeToString(deterministic=True))
    return digest.digest()
