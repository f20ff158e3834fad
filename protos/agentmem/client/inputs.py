"""Callers' arguments as messages. Values of wrong types are protobuf's TypeError or ValueError."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, TypedDict

from agentmem.client.answers import ToolCall, Version
from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2


class Unset(Enum):
    """A parameter that was not given, if None is a value."""

    UNSET = "the client's"


UNSET: Final = Unset.UNSET

Timeout: TypeAlias = float | Unset | None
"""Limit in seconds for a call, outages included; None: none. Default: the client's."""

Seconds: TypeAlias = float | timedelta

Policy: TypeAlias = Literal["trim", "refuse", "summarize"]

Tier: TypeAlias = Literal["hot", "warm", "remote"]


@dataclass(frozen=True, slots=True)
class Message:
    """`tool_calls` are an assistant's; `tool_call_id` is the call that a tool answers."""

    role: str
    content: str = ""
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @classmethod
    def of(cls, raw: types_pb2.ChatMessage) -> Message:
        return cls(
            raw.role,
            raw.content,
            raw.name if raw.HasField("name") else None,
            raw.reasoning_content if raw.HasField("reasoning_content") else None,
            tuple(map(_call, json.loads(raw.tool_calls_json))) if raw.HasField("tool_calls_json") else (),
            raw.tool_call_id if raw.HasField("tool_call_id") else None,
        )


def _call(raw: Mapping[str, Any]) -> ToolCall:
    function = raw.get("function") or {}
    arguments = function.get("arguments", "{}")
    spelled = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(str(raw.get("id", "")), str(function.get("name", "")), spelled)


Said: TypeAlias = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]
"""A user's text, or messages; mappings are OpenAI's."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Allowed calls: at least one (`required`), only `names`, at most one (`single`), `strict` arguments."""

    required: bool = False
    names: tuple[str, ...] = ()
    single: bool = False
    strict: tuple[str, ...] = ()


class TellOptions(TypedDict, total=False):
    """Options of a turn with or without an answer."""

    tools: Sequence[Mapping[str, Any]]
    """In OpenAI's shape. They come with a new agent's first turn; later turns may only repeat them."""
    template_arguments: Mapping[str, Any]
    """Such as {"enable_thinking": False}."""
    template_time: str
    """The template's present time, ISO 8601."""
    memory_mode: Literal["auto", "append", "replace", "refuse"]
    """How the input relates to the memory. Default: it is new."""
    only_if: Version
    """Raise Aborted unless the agent is in this state."""
    parse_special: bool
    label: str
    """To narrow FindAgent by."""
    request_id: str
    """A retry under the same id gets the committed turn. Default: a new id."""
    timeout: Timeout


class AskOptions(TellOptions, total=False):
    """Options of a turn with an answer. Greedy by default."""

    max_tokens: int
    stop: Sequence[str]
    """Strings that end the answer; not returned."""
    json_schema: Mapping[str, Any]
    """The text will fit it: see `Answer.json`."""
    tool_choice: ToolChoice
    cache_policy: Literal["keep", "read_only", "recompute"]
    """ "read_only" leaves the agent as it was; "recompute" reuses nothing."""
    top_logprobs: int
    """Log-probabilities of the tokens and this many alternatives."""
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    """Default: from the request_id, so that a repeated turn gives the same."""
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    ignore_eos: bool


_SAMPLING: Final = frozenset(field.name for field in types_pb2.Sampling.DESCRIPTOR.fields)


@dataclass(frozen=True)
class Beginning:
    system: str = ""
    ttl: Seconds | None = None
    delete_after: Seconds | None = None
    context_policy: Policy | None = None


def chat_message(said: Message | Mapping[str, Any], field: str = "message") -> types_pb2.ChatMessage:
    """Raises InvalidArgument."""
    if isinstance(said, Mapping):
        return _of_mapping(said, field)
    texts = {
        "role": said.role,
        "content": said.content,
        "name": said.name,
        "reasoning_content": said.reasoning,
        "tool_call_id": said.tool_call_id,
    }
    made = _of_mapping(texts, field)
    if said.tool_calls:
        made.tool_calls_json = _json(f"{field}.tool_calls", [_openai(call) for call in said.tool_calls])
    return made


def _openai(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}


def _of_mapping(said: Mapping[str, Any], field: str) -> types_pb2.ChatMessage:
    made = types_pb2.ChatMessage()
    for name, value in said.items():
        if value is None:
            continue
        if name == "tool_calls":
            made.tool_calls_json = _json(f"{field}.tool_calls", value)
        elif name in ("role", "content", "name", "reasoning_content", "tool_call_id") and isinstance(value, str):
            setattr(made, name, value)
        else:
            raise InvalidArgument(f"{field}.{name}", "is no text member of a message; write role, content and the like")
    return made


def messages_of(said: Said) -> list[types_pb2.ChatMessage]:
    """A text is the user's. Raises InvalidArgument."""
    if isinstance(said, str):
        return [chat_message({"role": "user", "content": said})]
    if isinstance(said, Message | Mapping):
        return [chat_message(said)]
    return [chat_message(each, f"messages[{index}]") for index, each in enumerate(said)]


def chat_of(
    said: Said,
    *,
    system: str = "",
    tools: Sequence[Mapping[str, Any]] = (),
    template_arguments: Mapping[str, Any] | None = None,
) -> types_pb2.Messages:
    """Raises InvalidArgument."""
    first = [chat_message({"role": "system", "content": system}, "system")] if system else []
    chat = types_pb2.Messages(messages=[*first, *messages_of(said)])
    if tools:
        chat.tools_json = _json("tools", [dict(tool) for tool in tools])
    if template_arguments:
        chat.template_arguments_json = _json("template_arguments", dict(template_arguments))
    return chat


def _json(field: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(field, f"is not JSON: {error}") from error


def prefill(
    key: types_pb2.AgentKey, beginning: Beginning, said: Said, options: TellOptions
) -> inference_pb2.PrefillRequest:
    """Raises InvalidArgument."""
    request = inference_pb2.PrefillRequest()
    _fill(request, key, beginning, said, options)
    return request


def generate(
    key: types_pb2.AgentKey, beginning: Beginning, said: Said, options: AskOptions
) -> inference_pb2.GenerateRequest:
    """Raises InvalidArgument.

    The input is sent as new, so that callers need not know the agent's memory, and a retry from another process is the
    same request. The worker leaves out a system message that the memory begins with.
    """
    request = inference_pb2.GenerateRequest()
    _fill(request, key, beginning, said, options)
    stop = options.get("stop", ())
    request.stop.extend([stop] if isinstance(stop, str) else stop)
    for name in ("max_tokens", "top_logprobs"):
        if name in options:
            setattr(request, name, options[name])
    if "json_schema" in options:
        request.json_schema = _json("json_schema", dict(options["json_schema"]))
    if "cache_policy" in options:
        policy = options["cache_policy"]
        request.cache_policy = enum_value("cache_policy", inference_pb2.CachePolicy, "CACHE_POLICY", policy)
    request.tool_calls = bool(options.get("tools"))
    if "tool_choice" in options:
        choice = options["tool_choice"]
        request.tool_choice.CopyFrom(
            inference_pb2.ToolChoice(
                required=choice.required, names=choice.names, single=choice.single, strict=choice.strict
            )
        )
    _sample(request.sampling, options, request.request_id)
    return request


def _seed_of(request_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest()) >> 1


def _sample(sampling: types_pb2.Sampling, options: AskOptions, request_id: str) -> None:
    for name in _SAMPLING & options.keys():
        value: Any = options[name]  # type: ignore[literal-required]
        if name == "logit_bias":
            sampling.logit_bias.update(value)
        else:
            setattr(sampling, name, value)
    greedy = sampling.HasField("temperature") and not sampling.temperature
    if not greedy and not sampling.HasField("seed"):
        sampling.seed = _seed_of(request_id)


def _fill(request: Any, key: types_pb2.AgentKey, beginning: Beginning, said: Said, options: TellOptions) -> None:
    request.key.CopyFrom(key)
    request.request_id = options.get("request_id") or f"turn-{uuid.uuid4().hex}"
    chat = chat_of(
        said,
        system=beginning.system,
        tools=options.get("tools", ()),
        template_arguments=options.get("template_arguments"),
    )
    request.messages.CopyFrom(chat)
    verified = beginning.system and not any(each.role == "assistant" for each in chat.messages)
    mode = options.get("memory_mode", "auto" if verified else "append")
    request.memory_mode = enum_value("memory_mode", inference_pb2.MemoryMode, "MEMORY_MODE", mode)
    if "only_if" in options:
        request.if_version = options["only_if"].version
        request.if_revision = options["only_if"].revision
    for name in ("template_time", "label", "parse_special"):
        if name in options:
            setattr(request, name, options[name])
    if (policy := beginning.context_policy) is not None:
        request.context_policy = enum_value("context_policy", types_pb2.ContextPolicy, "CONTEXT_POLICY", policy)
    if times := durations(ttl=beginning.ttl, delete_after=beginning.delete_after):
        request.expiry.CopyFrom(types_pb2.Expiry(**times))


def enum_value(name: str, enum: Any, prefix: str, value: str) -> Any:
    """Raises InvalidArgument."""
    try:
        return enum.Value(f"{prefix}_{value.upper()}")
    except ValueError as error:
        known = ", ".join(repr(each.removeprefix(f"{prefix}_").lower()) for each in enum.keys()[1:])
        raise InvalidArgument(name, f"is one of {known}, and not {value!r}") from error


def durations(**times: Seconds | None) -> dict[str, Any]:
    """Return the times that are given."""
    given = {name: time for name, time in times.items() if time is not None}
    return {name: time if isinstance(time, timedelta) else timedelta(seconds=time) for name, time in given.items()}
