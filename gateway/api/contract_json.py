"""Messages of the contract as REST's JSON; `transcoding.py` has the way back.

Enums are short names ("hot"), durations seconds, times RFC 3339, bytes base64, tokens per tier an object ({"hot": 7}).
`namespace` is never there: it is the caller's. The command line imports this, so nothing that only servers have is
used.
"""

from functools import cache
from typing import Any, Final, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from agentmem.v1 import types_pb2
from agentmem.words import short_names

Json = dict[str, Any]

DURATION: Final = Duration.DESCRIPTOR
TIMESTAMP: Final = Timestamp.DESCRIPTOR
TIER_TOKENS: Final = types_pb2.TierTokens.DESCRIPTOR
LARGEST_FLOAT: Final = 3.4028234663852886e38

_LARGEST_DOUBLE: Final = 1.7976931348623157e308
_PRINTED_AS_TEXT: Final = frozenset({FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64})
"""By protobuf's JSON, and not by REST's."""


def to_json(message: Message) -> Json:
    """Return a message as JSON: every field, null where there is none; of a oneof only the arm that is set."""
    printed = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _shown(cast(Any, message).DESCRIPTOR, printed)


def _shown(descriptor: Descriptor, printed: Json) -> Json:
    return {
        field.name: _value(field, printed[field.name]) if field.name in printed else None
        for field in descriptor.fields
        if not is_hidden(field) and (field.name in printed or oneof_of(field) is None)
    }


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is TIER_TOKENS:
        tiers = enum_names(types_pb2.Tier.DESCRIPTOR)
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
        return enum_names(field.enum_type).get(value)
    if field.type == FieldDescriptor.TYPE_FLOAT and isinstance(value, float):
        return max(-LARGEST_FLOAT, min(value, LARGEST_FLOAT))  # which is printed as a little more than it is
    if field.type == FieldDescriptor.TYPE_DOUBLE and value == "Infinity":
        return _LARGEST_DOUBLE  # JSON has no infinity
    return int(value) if field.type in _PRINTED_AS_TEXT else value


@cache
def enum_names(enum: EnumDescriptor) -> dict[str, str]:
    return {enum.values_by_number[number].name: short for number, short in short_names(enum).items()}


def is_hidden(field: FieldDescriptor) -> bool:
    return field.name == "namespace"


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def map_fields(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    entry: Any = field.message_type
    return entry.fields_by_name["key"], entry.fields_by_name["value"]


def oneof_of(field: FieldDescriptor) -> OneofDescriptor | None:
    """Return the oneof that the field is an arm of; none for proto3's optional fields."""
    oneof: OneofDescriptor | None = field.containing_oneof
    return None if oneof is None or oneof.name.startswith("_") else oneof
