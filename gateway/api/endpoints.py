"""RPCs over REST."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple

from google.protobuf.descriptor import MethodDescriptor
from pydantic import AfterValidator, Field, WithJsonSchema

from agentmem.errors import InvalidArgument
from agentmem.rpcs import options
from gateway.api.validation import Json, KeyPart

Values = Mapping[str, str | int | bool]
"""Parameters that were given, by name."""

_PATH_FIELDS: Final = {"agent": "key.agent_id", "name": "name", "model": "model_id", "workflow": "workflow_id"}


class Kind(Enum):
    """How an endpoint is answered."""

    UNARY = auto()
    """One message, as JSON."""
    TURN = auto()
    """An exchange of the dialects: events where the body asks for them, and else one object."""
    EVENTS = auto()
    """Server-sent events, one for each message."""
    FILE = auto()
    """A file, which the RPC streams in chunks."""
    UPLOAD = auto()
    """One message; the body is a file."""


def _int32(text: str) -> int:
    if int(text) not in _INT32:
        raise ValueError("must be a whole number of 32 bits")
    return int(text)


_INT32: Final = range(-(2**31), 2**31)
Flag = Annotated[
    Literal["true", "false"], AfterValidator(lambda text: text == "true"), WithJsonSchema({"type": "boolean"})
]
Number = Annotated[
    str,
    Field(pattern="^-?[0-9]{1,10}$"),
    AfterValidator(_int32),
    WithJsonSchema({"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}),
]
Sequence = Annotated[
    str,
    Field(pattern="^[0-9]{1,15}$"),
    AfterValidator(int),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 10**15 - 1}),
]
"""In the range in which JSON's numbers are exact."""
Token = Annotated[str, Field(max_length=4096), WithJsonSchema({"type": "string"})]


class Parameter(NamedTuple):
    """`field` is the path of the request's field that a query parameter fills, empty for none."""

    name: str
    field: str
    what: str
    kind: Any = KeyPart
    required: bool = False


@dataclass(frozen=True)
class Endpoint:
    """The body has all fields of the RPC's request that come neither from path nor query.

    `example` is a body, and `needed` a field of it that must be given although the contract has a default for it.
    `absent` are fields that REST does not have here, and `parts` the fields that parts of the path fill, where unusual.
    """

    method: str
    path: str
    rpc: MethodDescriptor
    summary: str
    query: tuple[Parameter, ...]
    needed: str = ""
    example: Json | None = field(default=None, hash=False)
    absent: frozenset[str] = frozenset()
    parts: Mapping[str, str] = field(default_factory=dict, hash=False)

    @cached_property
    def fields(self) -> dict[str, str]:
        """Fields that parameters fill, by their names."""
        in_path = {name: self.parts.get(name, _PATH_FIELDS[name]) for name in re.findall(r"{(\w+)}", self.path)}
        return in_path | {parameter.name: parameter.field for parameter in self.query if parameter.field}

    @cached_property
    def outside(self) -> frozenset[str]:
        """Fields that the body does not have: parameters, arms of a oneof that one of them fills."""
        bound = {path.partition(".")[0] for path in self.fields.values()} | self.absent
        if self.is_named:
            bound.add("request_id")
        for name in tuple(bound):
            if (
                group := self.rpc.input_type.fields_by_name[name].containing_oneof
            ) is not None and name not in self.absent:
                bound |= {arm.name for arm in group.fields}
        return frozenset(bound)

    @cached_property
    def kind(self) -> Kind:
        rpc = self.rpc
        if rpc.client_streaming:
            return Kind.UPLOAD
        if rpc.server_streaming:
            if self.is_turn:
                return Kind.TURN
            return Kind.FILE if "chunk" in rpc.output_type.fields_by_name else Kind.EVENTS
        return Kind.UNARY

    @property
    def is_named(self) -> bool:
        return options(self.rpc).named and "request_id" not in self.absent

    @property
    def is_turn(self) -> bool:
        return options(self.rpc).turn

    @property
    def has_body(self) -> bool:
        return self.method in ("POST", "PUT") and self.kind is not Kind.UPLOAD

    def check(self, given: Values) -> None:
        """Raise InvalidArgument for parameters that contradict each other."""
        if self.rpc.name == "DeleteAgent" and ("model" in given) == bool(given.get("all_models")):
            raise InvalidArgument("model", "name one model, or say all_models=true to delete the agent on all of them")

    def renamed(self, error: InvalidArgument) -> InvalidArgument:
        names = {path: name for name, path in self.fields.items()}
        if self.is_named:
            names["request_id"] = "Idempotency-Key"
        return InvalidArgument(names.get(error.field, error.field), error.problem, error.violations[1:])
