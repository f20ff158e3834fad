"""Messages of the contract as REST's JSON and back, by their descriptors, so that REST cannot drift from the contract.

Names are the contract's. Enums are lower-case short names ("hot"), null where nothing is said; durations are numbers of
seconds and times RFC 3339; bytes are base64; tokens per tier are an object ({"hot": 7}). Of a oneof exactly one field
is there. What is infinite is the largest number of 64 bits. `namespace` is never there: it is the caller's. Between
this and messages stands protobuf's own JSON.
"""

import base64
import binascii
from collections.abc import Collection
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
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

from agentmem.v1 import types_pb2
from agentmem.words import short_names
from gateway.api.validation import Json, Strict, Text, parse_body

DURATION: Final = Duration.DESCRIPTOR
TIMESTAMP: Final = Timestamp.DESCRIPTOR
TIER_TOKENS: Final = types_pb2.TierTokens.DESCRIPTOR

_LARGEST_FLOAT: Final = 3.4028234663852886e38
_LARGEST_DOUBLE: Final = 1.7976931348623157e308
_MOST_SECONDS: Final = 315_576_000_000
_MOST_KEYS: Final = 1024
_INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
_PRINTED_AS_TEXT: Final = frozenset({FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64})
"""By protobuf's JSON, and not by REST's."""


class ContractModel(Strict):
    """Base of the models that are made here. Of the fields of each group in `oneofs` exactly one is given.

    They check what is read and describe both ways for the OpenAPI document; what they dump is protobuf's JSON.
    """

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
    """Return a model of a message but for the fields in `without`; `needed` must be given.

    `name` is the schema's, by default the message's. `further` are fields that the contract does not have, as
    pydantic.create_model takes them.
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
    """Return the model of a whole message."""
    return contract_model(descriptor)


def is_hidden(field: FieldDescriptor) -> bool:
    """Return whether REST doesn't have the field."""
    return field.name == "namespace"


def is_map(field: FieldDescriptor) -> bool:
    """Return whether the field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def map_fields(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """Return the fields that a map's keys and values are."""
    entry: Any = field.message_type
    return entry.fields_by_name["key"], entry.fields_by_name["value"]


def oneof_of(field: FieldDescriptor) -> OneofDescriptor | None:
    """Return the oneof that the field is an arm of; none for proto3's optional fields."""
    oneof: OneofDescriptor | None = field.containing_oneof
    return None if oneof is None or oneof.name.startswith("_") else oneof


def _field(field: FieldDescriptor, *, needed: bool) -> tuple[Any, Any]:
    """Return the field's type and default, as pydantic.create_model takes them."""
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
        keys, values = map_fields(field)
        return Annotated[dict[_map_key(keys), _single(values)], Field(max_length=_MOST_KEYS)]  # type: ignore[misc]
    if field.message_type is TIER_TOKENS:
        names = {short: name for name, short in _enum(types_pb2.Tier.DESCRIPTOR).items()}
        tokens = dict[Literal[tuple(names)], _single(TIER_TOKENS.fields_by_name["tokens"])]  # type: ignore[misc, valid-type]
        return Annotated[tokens, PlainSerializer(lambda by: [{"tier": names[t], "tokens": n} for t, n in by.items()])]
    return list[_single(field)] if field.is_repeated else _single(field)  # type: ignore[misc]


def _single(field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        names = {short: name for name, short in _enum(field.enum_type).items()}
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
        FieldDescriptor.TYPE_STRING: Text,
        FieldDescriptor.TYPE_BYTES: _Base64,
        FieldDescriptor.TYPE_FLOAT: Annotated[float, Field(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)],
        FieldDescriptor.TYPE_DOUBLE: float,
    }[field.type]


def _map_key(field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return Text
    most = _INTEGERS[field.type][1]

    def check(key: str) -> str:
        if int(key) > most:
            raise ValueError(f"its keys are numbers up to {most}")
        return key

    return Annotated[str, Field(pattern=rf"^(0|[1-9][0-9]{{0,{len(str(most)) - 1}}})$"), AfterValidator(check)]


def _base64(value: str) -> str:
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be base64") from None
    return value


def _time(value: str) -> str:
    try:
        Timestamp().FromJsonString(value)
    except ValueError:
        raise ValueError("must be a time of RFC 3339, such as 2026-01-31T12:00:00Z") from None
    return value


_Base64 = Annotated[str, AfterValidator(_base64), Field(json_schema_extra={"contentEncoding": "base64"})]
_Time = Annotated[str, AfterValidator(_time), Field(json_schema_extra={"format": "date-time"})]


def read_json(body: bytes, model: type[ContractModel], message: Any, without: frozenset[str] = frozenset()) -> Any:
    """Set the fields of `message` that a body has, but for those in `without`, and return the body as `model`.

    Raises InvalidArgument that names the field.
    """
    parsed = parse_body(body, model)
    message.SetInParent()
    json_format.ParseDict(parsed.model_dump(exclude_unset=True, exclude_none=True, exclude=set(without)), message)
    return parsed


def to_json(message: Message) -> Json:
    """Return a message as JSON: every field, null where there is none; of a oneof only the arm that is set."""
    printed = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _shown(cast(Any, message).DESCRIPTOR, printed)


def _shown(descriptor: Descriptor, printed: Json) -> Json:
    """Return protobuf's JSON of a message as REST has it."""
    return {
        field.name: _value(field, printed[field.name]) if field.name in printed else None
        for field in descriptor.fields
        if not is_hidden(field) and (field.name in printed or oneof_of(field) is None)
    }


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is TIER_TOKENS:
        tiers = _enum(types_pb2.Tier.DESCRIPTOR)
        return {tiers[part["tier"]]: part["tokens"] for part in value if part["tier"] in tiers}
    if is_map(field):
        return {key: _single_value(map_fields(field)[1], one) for key, one in value.items()}
    return [_single_value(field, one) for one in value] if field.is_repeated else _single_value(field, value)


def _single_value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is DURATION:
        return round(float(value[:-1]), 6)
    if field.message_type is not None and field.message_type is not TIMESTAMP:
        return _shown(field.message_type, value)
    if field.enum_type is not None:
        return _enum(field.enum_type).get(value)
    if field.type == FieldDescriptor.TYPE_FLOAT and isinstance(value, float):
        return max(-_LARGEST_FLOAT, min(value, _LARGEST_FLOAT))  # which is printed as a little more than it is
    if field.type == FieldDescriptor.TYPE_DOUBLE and value == "Infinity":
        return _LARGEST_DOUBLE  # JSON has no infinity
    return int(value) if field.type in _PRINTED_AS_TEXT else value


@cache
def _enum(enum: EnumDescriptor) -> dict[str, str]:
    """Return the short names of an enum's values, by their names."""
    return {enum.values_by_number[number].name: short for number, short in short_names(enum).items()}
