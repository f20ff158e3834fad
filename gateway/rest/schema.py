"""The contract's messages as pydantic models, made from its descriptors, so that REST cannot drift from it.

Names are the contract's. Enums are lower-case short names ("hot"), null where nothing is said; durations are numbers of
seconds and times RFC 3339; bytes are base64; tokens per tier are an object ({"hot": 7}). Of a oneof exactly one field
is there. `namespace` is never there: it is the caller's.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from google.protobuf.descriptor import Descriptor, FieldDescriptor, OneofDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema

from agentmem.v1 import types_pb2
from gateway.enums import short_names
from gateway.fields import Text

DURATION: Final = Duration.DESCRIPTOR
TIMESTAMP: Final = Timestamp.DESCRIPTOR
TIER_TOKENS: Final = types_pb2.TierTokens.DESCRIPTOR

_LARGEST_FLOAT: Final = 3.4028234663852886e38
_MOST_SECONDS: Final = 315_576_000_000
_MOST_KEYS: Final = 1024
_INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}


class ContractModel(BaseModel):
    """Base of the models that are made here. Of the fields of each group in `oneofs` exactly one is given."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        json_schema_serialization_defaults_required=True,  # a response has every field
    )
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


def body_model(
    descriptor: Descriptor,
    name: str,
    *,
    without: frozenset[str] = frozenset(),
    needed: frozenset[str] = frozenset(),
    **further: Any,
) -> type[ContractModel]:
    """A model of a request's body: the message but for the fields in `without`; those in `needed` must be given.

    `further` are fields that the contract does not have, as pydantic.create_model takes them.
    """
    fields = [field for field in descriptor.fields if field.name not in without]
    return _model(name, fields, needed, further)


@cache
def message_model(descriptor: Descriptor) -> type[ContractModel]:
    """The model of a whole message."""
    return _model(descriptor.name, descriptor.fields)


def is_hidden(field: FieldDescriptor) -> bool:
    """Whether REST doesn't have the field."""
    return field.name == "namespace"


def is_map(field: FieldDescriptor) -> bool:
    """Whether the field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def map_fields(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """The fields that a map's keys and values are."""
    entry: Any = field.message_type
    return entry.fields_by_name["key"], entry.fields_by_name["value"]


def oneof_of(field: FieldDescriptor) -> OneofDescriptor | None:
    """The oneof that the field is an arm of; none for proto3's optional fields."""
    oneof: OneofDescriptor | None = field.containing_oneof
    return None if oneof is None or oneof.name.startswith("_") else oneof


def _model(
    name: str,
    fields: Iterable[FieldDescriptor],
    needed: frozenset[str] = frozenset(),
    further: Mapping[str, Any] | None = None,
) -> type[ContractModel]:
    shown = [field for field in fields if not is_hidden(field)]
    definitions: dict[str, Any] = {field.name: _field(field, needed=field.name in needed) for field in shown}
    definitions |= further or {}
    made: type[ContractModel] = create_model(name, __base__=ContractModel, __module__=__name__, **definitions)
    groups: dict[str, tuple[str, ...]] = {}
    for field in shown:
        if (oneof := oneof_of(field)) is not None:
            groups[oneof.name] = (*groups.get(oneof.name, ()), field.name)
    made.oneofs = tuple(groups.values())
    return made


def _field(field: FieldDescriptor, *, needed: bool) -> tuple[Any, Any]:
    """The field's type and default, as pydantic.create_model takes them."""
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
        tiers: Any = Literal[tuple(short_names(types_pb2.Tier.DESCRIPTOR).values())]
        return dict[tiers, _integer(FieldDescriptor.TYPE_UINT32)]  # type: ignore[misc]
    return list[_single(field)] if field.is_repeated else _single(field)  # type: ignore[misc]


def _single(field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return Literal[tuple(short_names(field.enum_type).values())]
    if field.message_type is not None:
        return _message(field.message_type)
    if field.type in _INTEGERS:
        return _integer(field.type)
    return {
        FieldDescriptor.TYPE_BOOL: bool,
        FieldDescriptor.TYPE_STRING: Text,
        FieldDescriptor.TYPE_BYTES: _Base64,
        FieldDescriptor.TYPE_FLOAT: Annotated[float, Field(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)],
        FieldDescriptor.TYPE_DOUBLE: float,
    }[field.type]


def _message(descriptor: Descriptor) -> Any:
    if descriptor is DURATION:
        return Annotated[float, Field(ge=0, le=_MOST_SECONDS, description="Seconds.")]
    if descriptor is TIMESTAMP:
        return _Time
    return message_model(descriptor)


def _integer(kind: int) -> Any:
    least, most = _INTEGERS[kind]
    return Annotated[int, Field(ge=least, le=most)]


def _map_key(field: FieldDescriptor) -> Any:
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
