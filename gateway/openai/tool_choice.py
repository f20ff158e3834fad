"""What a request says of the calls that the model may make: `tool_choice`, `parallel_tool_calls` and strict tools."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2
from gateway.fields import Strict
from gateway.openai.schema import Name

Word = Literal["auto", "none", "required"]
_Mode = Literal["auto", "required"]


class _Named(Strict):
    """A function's name."""

    name: Name


class ChatFunction(Strict):
    """One function, as chat requests name it."""

    type: Literal["function"]
    function: _Named


class _Allowed(Strict):
    mode: _Mode
    tools: Annotated[list[ChatFunction], Field(min_length=1)]


class ChatAllowedTools(Strict):
    """Some of the functions, as chat requests name them."""

    type: Literal["allowed_tools"]
    allowed_tools: _Allowed


class ResponseFunction(Strict):
    """One function, as requests for a response name it."""

    type: Literal["function"]
    name: Name


class ResponseAllowedTools(Strict):
    """Some of the functions, as requests for a response name them."""

    type: Literal["allowed_tools"]
    mode: _Mode
    tools: Annotated[list[ResponseFunction], Field(min_length=1)]


def _kind(value: Any) -> Any:
    if isinstance(value, str):
        return "word"
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


_One_of = Discriminator(
    _kind,
    custom_error_type="tool_choice",
    custom_error_message='must be "auto", "none", "required", a function or allowed_tools',
)
ChatToolChoice: TypeAlias = Annotated[
    Annotated[Word, Tag("word")]
    | Annotated[ChatFunction, Tag("function")]
    | Annotated[ChatAllowedTools, Tag("allowed_tools")],
    _One_of,
]
ResponseToolChoice: TypeAlias = Annotated[
    Annotated[Word, Tag("word")]
    | Annotated[ResponseFunction, Tag("function")]
    | Annotated[ResponseAllowedTools, Tag("allowed_tools")],
    _One_of,
]
_Choice: TypeAlias = Word | ChatFunction | ChatAllowedTools | ResponseFunction | ResponseAllowedTools | None


def held_calls(
    choice: _Choice, tools: Sequence[str], strict: Sequence[str], *, parallel: bool | None
) -> inference_pb2.ToolChoice | None:
    """What calls are held to, in the contract's words; None where they are the model's own.

    `tools` are the names of those that the model is told of, `strict` of those that ask for it. Raises InvalidArgument
    for a choice among other tools.
    """
    required, names, single = False, list[str](), parallel is False
    match choice:
        case "required":
            required = True
        case ChatFunction() | ResponseFunction():
            required, names, single = True, [_name(choice)], True
        case ChatAllowedTools(allowed_tools=_Allowed(mode=mode, tools=functions)):
            required, names = mode == "required", [_name(function) for function in functions]
        case ResponseAllowedTools(mode=mode, tools=functions):
            required, names = mode == "required", [_name(function) for function in functions]
    if (required or names) and not tools:
        raise InvalidArgument("tool_choice", "needs tools")
    if not set(names) <= set(tools):
        raise InvalidArgument("tool_choice", "names a function that is not among the tools")
    if not tools or not (required or names or single or strict):
        return None
    return inference_pb2.ToolChoice(required=required, names=names, single=single, strict=strict)


def _name(function: ChatFunction | ResponseFunction) -> str:
    return function.function.name if isinstance(function, ChatFunction) else function.name
