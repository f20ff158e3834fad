"""What an answer that may call tools is held to: the contract's tool_choice and its tools, checked."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentmem.errors import InvalidArgument
from agentmem.limits import MAX_SCHEMA_BYTES
from agentmem.v1 import inference_pb2
from inference_service.domain import HeldAnswer, HeldTool

_FIELD: Final = "tool_choice"
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""What a function has that says nothing of its parameters, as OpenAI documents it."""


def held_answer(
    request: inference_pb2.GenerateRequest, schema: str | None, tools: Sequence[Mapping[str, Any]]
) -> HeldAnswer | None:
    """What the answer is held to; None where calls are not. `schema` is what its text has to fit.

    Raises InvalidArgument. Whether schemas can be honoured is for the grammar to say.
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
    """Raises InvalidArgument where it is no function in OpenAI's shape."""
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
