"""Messages of the contract to JSON and back, as `gateway.rest.schema` describes it."""

import base64
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from pydantic import BaseModel

from agentmem.v1 import types_pb2
from gateway.enums import short_name, short_names
from gateway.exchange import Json
from gateway.rest.schema import DURATION, TIER_TOKENS, TIMESTAMP, is_hidden, is_map, map_fields, oneof_of


def to_json(message: Message) -> Json:
    """A message as JSON: every field, null where there is none; of a oneof only the arm that is set."""
    written: Json = {}
    fields: Sequence[FieldDescriptor] = cast(Any, message).DESCRIPTOR.fields
    for field in fields:
        if is_hidden(field):
            continue
        if field.has_presence and not message.HasField(field.name):
            if oneof_of(field) is None:
                written[field.name] = None
        elif field.message_type is TIER_TOKENS:
            tiers = short_names(types_pb2.Tier.DESCRIPTOR)
            parts = [part for part in getattr(message, field.name) if part.tier in tiers]
            written[field.name] = {tiers[part.tier]: part.tokens for part in parts}
        elif is_map(field):
            _, values = map_fields(field)
            written[field.name] = {str(k): _written(values, v) for k, v in getattr(message, field.name).items()}
        elif field.is_repeated:
            written[field.name] = [_written(field, value) for value in getattr(message, field.name)]
        else:
            written[field.name] = _written(field, getattr(message, field.name))
    return written


def _written(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is DURATION:
        return round(value.ToTimedelta().total_seconds(), 6)
    if field.message_type is TIMESTAMP:
        return value.ToJsonString()
    if field.message_type is not None:
        return to_json(value)
    if field.enum_type is not None:
        return short_name(field.enum_type, value) or None
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64encode(value).decode("ascii")
    return value


def fill(message: Message, body: BaseModel, without: frozenset[str] = frozenset()) -> None:
    """Set the fields of `message` that `body`, one of schema's models, has; but for those in `without`."""
    _fill(message, body.model_dump(exclude_unset=True, exclude=set(without)))


def _fill(message: Any, data: Mapping[str, Any]) -> None:
    message.SetInParent()
    for name, value in data.items():
        if value is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.message_type is not None or field.is_repeated:
            _fill_within(field, getattr(message, name), value)
        else:
            setattr(message, name, _read(field, value))


def _fill_within(field: FieldDescriptor, target: Any, value: Any) -> None:
    if field.message_type is TIER_TOKENS:
        for tier, tokens in value.items():
            target.add(tier=_number(types_pb2.Tier.DESCRIPTOR, tier), tokens=tokens)
    elif is_map(field):
        keys, values = map_fields(field)
        for key, one in value.items():
            target[key if keys.type == FieldDescriptor.TYPE_STRING else int(key)] = _read(values, one)
    elif not field.is_repeated:
        _fill_message(field, target, value)
    elif field.message_type is not None:
        for one in value:
            _fill_message(field, target.add(), one)
    else:
        target.extend(_read(field, one) for one in value)


def _fill_message(field: FieldDescriptor, target: Any, value: Any) -> None:
    if field.message_type is DURATION:
        target.FromTimedelta(timedelta(seconds=value))
    elif field.message_type is TIMESTAMP:
        target.FromJsonString(value)
    else:
        _fill(target, value)


def _read(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        return _number(field.enum_type, value)
    return base64.b64decode(value) if field.type == FieldDescriptor.TYPE_BYTES else value


def _number(enum: EnumDescriptor, short: str) -> int:
    return next(number for number, name in short_names(enum).items() if name == short)
