"""Requests that are refused: uploads are read to their end first, and bytes that do not parse are explained by field.

protobuf refuses text that is not UTF-8 without saying where; a caller in another language needs to know.
"""

import asyncio
from collections.abc import AsyncIterable
from contextlib import suppress
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

READ_ON_SECONDS: Final = 2.0


async def drain(upload: AsyncIterable[object]) -> None:
    """Read the rest of a refused upload for a while: a client that is cut off while it writes may not read why."""
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_ON_SECONDS):
            async for _ in upload:
                pass


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def ill_formed_text(descriptor: Descriptor, data: bytes) -> str | None:
    """Path of the first string field in `data` that is not UTF-8; None if there is none or nothing can be read."""
    try:
        return _search(descriptor, data)
    except (IndexError, ValueError):
        return None


def _search(descriptor: Descriptor, data: bytes) -> str | None:
    at, counts = 0, dict[int, int]()
    while at < len(data):
        tag, at = _varint(data, at)
        field = descriptor.fields_by_number.get(tag >> 3)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            size, at = _varint(data, at)
            payload, at = data[at : at + size], at + size
            if field is None:
                continue
            index = counts.get(field.number, 0)
            counts[field.number] = index + 1
            name = f"{field.name}[{index}]" if field.is_repeated else field.name
            if field.type == FieldDescriptor.TYPE_STRING and not _is_utf8(payload):
                return name
            if field.message_type is not None and (inner := _search(field.message_type, payload)):
                return f"{name}.{inner}"
        else:
            raise ValueError("groups are not used")
    return None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
