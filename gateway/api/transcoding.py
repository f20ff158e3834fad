"""REST's JSON back to messages, by models that the OpenAPI document has, too."""

import base64
import binascii
import re
from collections.abc import Collection
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema

from agentmem.errors import InvalidArgument
from agentmem.v1 import types_pb2
from gateway.api.contract_json import (
    DURATION,
    LARGEST_FLOAT,
    TIER_TOKENS,
    TIMESTAMP,
    enum_names,
    is_hidden,
    is_map,
    map_fields,
    oneof_of,
)
from gateway.api.validation import Many, Strict, parse_body

_MOST_SECONDS: Final = 315_576_000_000
_MOST_KEYS: Final = 1024
_FAILED: Final = re.compile(r"Failed to parse (\w+) field: ")
_INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}


class ContractModel(Strict):
    """The models dump protobuf's JSON. Of each group in `oneofs` exactly one is given."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)  # a response has every field
    oneofs: ClassVar[tuple[tuple[str, ...], ...]] = ()

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for names in type(self).oneofs:
            if len(self.model_fields_set.intersection(names)) != 1:
                raise ValueError(f"give exactly one of {', '.join(names)}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(core))
        schema.pop("description", None)
        for names in cls.oneofs:
            required = [name for name in schema.pop("required", ()) if name not in names]
            schema.update({"required": required} if required else {})
            schema["oneOf"] = [{"required": [name]} for name in names]
            for name in names:
                schema["properties"][name].pop("default", None)
        return schema


def contract_model(
    descriptor: Descriptor, without: Collection[str] = (), needed: str = "", name: str = "", **further: Any
) -> type[ContractModel]:
    """Return a model of a message but for the fields in `without`; `needed` must be given. `name` is the schema's,
    `further` are fields that the contract does not have.
    """
    shown = [field for field in descriptor.fields if not is_hidden(field) and field.name not in without]
    definitions: dict[str, Any] = {field.name: _field(field, needed=field.name == needed) for field in shown}
    made: type[ContractModel] = create_model(
        name or descriptor.name, __base__=ContractModel, __module__=__name__, **definitions, **further
    )
    groups: dict[str, tuple[str, ...]] = {}
    for field in shown:
        if (oneof := oneof_of(field)) is not None:
            groups[oneof.name] = (*groups.get(oneof.name, ()), field.name)
    made.oneofs = tuple(groups.values())
    return made


@cache
def message_model(descriptor: Descriptor) -> type[ContractModel]:
    return contract_model(descriptor)


def _field(field: FieldDescriptor, *, needed: bool) -> tuple[Any, Any]:
    """For pydantic.create_model."""
    kind = _type(field)
    if needed:
        return kind, ...
    if is_map(field) or field.message_type is TIER_TOKENS:
        return kind, Field(default_factory=dict)
    if field.is_repeated:
        return kind, Field(default_factory=list)
    if oneof_of(field) is not None:
        return kind, None  # never null: an arm that is there is the one that was chosen
    if field.has_presence or field.enum_type is not None:
        return kind | None, None
    return kind, field.default_value if field.type != FieldDescriptor.TYPE_BYTES else ""


def _type(field: FieldDescriptor) -> Any:
    if is_map(field):
        _, values = map_fields(field)  # json_format reads the keys
        return Annotated[dict[str, _single(values)], Field(max_length=_MOST_KEYS)]  # type: ignore[misc]
    if field.message_type is TIER_TOKENS:
        names = {short: name for name, short in enum_names(types_pb2.Tier.DESCRIPTOR).items()}
        tokens = dict[Literal[tuple(names)], _single(TIER_TOKENS.fields_by_name["tokens"])]  # type: ignore[misc, valid-type]
        return Annotated[tokens, PlainSerializer(lambda by: [{"tier": names[t], "tokens": n} for t, n in by.items()])]
    return Many[_single(field)] if field.is_repeated else _single(field)  # type: ignore[misc]


def _single(field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        names = {short: name for name, short in enum_names(field.enum_type).items()}
        return Annotated[Literal[tuple(names)], PlainSerializer(names.__getitem__)]
    if field.message_type is DURATION:
        as_text = PlainSerializer(lambda seconds: f"{seconds:.6f}s")
        return Annotated[float, Field(ge=0, le=_MOST_SECONDS, description="Seconds."), as_text]
    if field.message_type is not None:
        return _Time if field.message_type is TIMESTAMP else message_model(field.message_type)
    if field.type in _INTEGERS:
        least, most = _INTEGERS[field.type]
        return Annotated[int, Field(ge=least, le=most)]
    return {
        FieldDescriptor.TYPE_BOOL: bool,
        FieldDescriptor.TYPE_STRING: str,
        FieldDescriptor.TYPE_BYTES: _Base64,
        FieldDescriptor.TYPE_FLOAT: Annotated[float, Field(ge=-LARGEST_FLOAT, le=LARGEST_FLOAT)],
        FieldDescriptor.TYPE_DOUBLE: float,
    }[field.type]


def _base64(value: str) -> str:
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be base64") from None
    return value


_Base64 = Annotated[str, AfterValidator(_base64), Field(json_schema_extra={"contentEncoding": "base64"})]
_Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def read_json(
    body: bytes | bytearray, model: type[ContractModel], message: Any, without: frozenset[str] = frozenset()
) -> Any:
    """Set the fields of `message` that a body has, but for those in `without`; return the body.

    Raises InvalidArgument that names the field.
    """
    parsed = parse_body(body, model)
    message.SetInParent()
    try:
        json_format.ParseDict(parsed.model_dump(exclude_unset=True, exclude_none=True, exclude=set(without)), message)
    except json_format.ParseError as error:
        *path, problem = _FAILED.split(str(error))
        raise InvalidArgument(".".join(filter(None, path)), problem.rstrip(".")) from None
    return parsed
