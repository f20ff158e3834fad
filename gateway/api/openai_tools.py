"""Tools of OpenAI's endpoints, and what calls are held to."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from pydantic import Field

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2
from gateway.api.content import OrOther, Other
from gateway.api.exchange import held_calls, tool_of
from gateway.api.validation import Forgiving, Json, JsonObject, Many, ToolName

CUSTOM_INPUT: Final = "input"
"""The argument of a custom tool's function."""


class FunctionDefinition(Forgiving):
    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    def to_tool(self) -> Json:
        return tool_of(self.name, self.description, self.parameters)


_Mode = Literal["auto", "required"]


class _Named(Forgiving):
    name: ToolName


class ChatFunction(Forgiving):
    type: Literal["function"]
    function: _Named

    @property
    def name(self) -> str:
        return self.function.name


class ResponseFunction(Forgiving):
    type: Literal["function"]
    name: ToolName


class _Allowed(Forgiving):
    mode: _Mode
    tools: Annotated[Many[ChatFunction], Field(min_length=1)]


class ChatAllowedTools(Forgiving):
    type: Literal["allowed_tools"]
    allowed_tools: _Allowed


class ResponseAllowedTools(Forgiving):
    type: Literal["allowed_tools"]
    mode: _Mode
    tools: Annotated[Many[ResponseFunction], Field(min_length=1)]


_Word = Literal["auto", "none", "required", "any"]
ChatToolChoice: TypeAlias = _Word | Annotated[ChatFunction | ChatAllowedTools, Field(discriminator="type")]
ResponseToolChoice: TypeAlias = _Word | Annotated[ResponseFunction | ResponseAllowedTools, Field(discriminator="type")]


def chosen(
    choice: str | ChatFunction | ChatAllowedTools | ResponseFunction | ResponseAllowedTools | None,
    tools: Sequence[FunctionDefinition],
    *,
    parallel: bool | None,
) -> inference_pb2.ToolChoice | None:
    required, names, single = choice in ("required", "any"), list[str](), parallel is False
    match choice:
        case ChatFunction() | ResponseFunction():
            required, names, single = True, [choice.name], True
        case ChatAllowedTools(allowed_tools=allowed) | (ResponseAllowedTools() as allowed):
            required, names = allowed.mode == "required", [function.name for function in allowed.tools]
    return held_calls(tools, required=required, names=names, single=single)


class Function(FunctionDefinition):
    type: Literal["function"]


class Grammar(Forgiving):
    type: Literal["text", "grammar"]
    syntax: str | None = None
    definition: str | None = None


class CustomTool(Forgiving):
    """The model gets it as a function of one text, and is not held to its grammar."""

    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: Grammar | None = None

    def to_function(self) -> Function:
        grammar = self.format.definition if self.format else None
        said = f"The text. It follows this grammar:\n{grammar}" if grammar else "The text."
        parameters = {
            "type": "object",
            "properties": {CUSTOM_INPUT: {"type": "string", "description": said}},
            "required": [CUSTOM_INPUT],
            "additionalProperties": False,
        }
        return Function(type="function", name=self.name, description=self.description, parameters=parameters)


class NamespaceTool(Forgiving):
    """The model gets these tools by both names, and what it calls is told by each."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: Many[Annotated[Function | CustomTool, Field(discriminator="type")]]


ResponseTool: TypeAlias = OrOther[Annotated[Function | CustomTool | NamespaceTool, Field(discriminator="type")]]


class Called(NamedTuple):
    """By the names that the caller has for the tool."""

    name: str
    namespace: str = ""
    custom: bool = False


def flat_name(name: str, namespace: str | None) -> str:
    return f"{namespace.removesuffix('__')}__{name}" if namespace else name


def functions_of(tools: Sequence[ResponseTool]) -> tuple[list[Function], dict[str, Called]]:
    """Return the functions that a model gets, by flat names, and the tools that these names stand for.

    Raises InvalidArgument where two tools have one name.
    """
    functions: list[Function] = []
    called: dict[str, Called] = {}

    def add(tool: Function | CustomTool, namespace: str, place: str) -> None:
        function = tool if isinstance(tool, Function) else tool.to_function()
        name = flat_name(tool.name, namespace)
        if name in called:
            raise InvalidArgument(f"{place}.name", "is the name of an earlier tool, too")
        called[name] = Called(tool.name, namespace, isinstance(tool, CustomTool))
        functions.append(function.model_copy(update={"name": name}) if name != function.name else function)

    for index, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            for inner, each in enumerate(tool.tools):
                add(each, tool.name, f"tools[{index}].tools[{inner}]")
        elif not isinstance(tool, Other):
            add(tool, "", f"tools[{index}]")
    return functions, called
