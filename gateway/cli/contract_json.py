"""Messages of the contract as --json writes them: its names of fields, and values that tools can read."""

import json
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from agentmem.v1 import types_pb2
from gateway.cli.text import iso_time
from gateway.enums import short_name
from gateway.memory_report import tier_name


def as_dict(message: Message) -> dict[str, Any]:
    """All fields by their names; None for messages, optional fields, and enums that say nothing.

    Enums have their short names, durations are seconds, times RFC 3339, tokens per tier an object by tier, and a field
    whose name ends in `_json` is what it holds, without that ending.
    """
    told: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            value = None
        else:
            value = _value(field, getattr(message, field.name))
        if field.name.endswith("_json") and value is not None:
            told[field.name.removesuffix("_json")] = _parsed(value)
        else:
            told[field.name] = value
    return told


def _value(field: Any, value: Any) -> Any:
    if not field.is_repeated:
        return _single(field, value)
    if field.message_type is types_pb2.TierTokens.DESCRIPTOR:
        tiers: Sequence[types_pb2.TierTokens] = value
        return {tier_name(part.tier): part.tokens for part in tiers}
    return [_single(field, one) for one in value]


def _single(field: Any, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return iso_time(value)
    if isinstance(value, Duration):
        return round(value.ToTimedelta().total_seconds(), 6)
    if isinstance(value, Message):
        return as_dict(value)
    enum: EnumDescriptor | None = field.enum_type
    return short_name(enum, value) or None if enum is not None else value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
