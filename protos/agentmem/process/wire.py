import asyncio
from collections import Counter
from collections.abc import AsyncIterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from agentmem.errors import InvalidArgument
from agentmem.limits import REPEATED

READ_ON_SECONDS: Final = 2.0


async def drain(upload: AsyncIterable[object]) -> None:
    """Read the rest of a refused upload for a while: a client that is cut off may not read why."""
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_ON_SECONDS):
            async for _ in upload:
                pass


MAX_FIELDS: Final = 200_000
"""Fields of a request before it is decoded. Packed numbers are one."""

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_VARINT_BYTES: Final = 10
_CONTINUED: Final = bytes(range(0x80, 0x100))
"""All but the last bytes of a varint."""


_Field = tuple[int, int, int, int]
"""Number, kind, start and end: data[start:end] follows tag and length. A plain tuple: a long chat has thousands."""


class _Limited(NamedTuple):
    """A field that REPEATED limits, or a message that has such fields."""

    field: FieldDescriptor
    most: int | None


def check_counts(descriptor: Descriptor, data: bytes) -> None:
    """Raise InvalidArgument for more elements than REPEATED allows. Malformed bytes pass: decoding fails."""
    if _limited(descriptor):
        with suppress(_Malformed):
            _count(descriptor, data, 0, len(data), "", Counter())


def _count(descriptor: Descriptor, data: bytes, at: int, end: int, path: str, counts: Counter[str]) -> None:
    limited = _limited(descriptor)
    for number, kind, start, stop in _fields(data, at, end):
        counts[""] += 1
        if counts[""] > MAX_FIELDS:
            raise InvalidArgument("request", f"has more than {MAX_FIELDS} fields; send less, and numbers packed")
        if kind in (_GROUP, _END_GROUP):
            raise InvalidArgument("request", "has groups, which the contract does not have")
        if (inner := limited.get(number)) is None:
            continue
        name = f"{path}{inner.field.name}"
        if inner.most is None:
            if kind == _BYTES and inner.field.message_type is not None:
                _count(inner.field.message_type, data, start, stop, f"{name}.", counts)
            continue
        packed = kind == _BYTES and inner.field.type == FieldDescriptor.TYPE_UINT32
        counts[name] += len(data[start:stop].translate(None, _CONTINUED)) if packed else 1
        if counts[name] > inner.most:
            raise InvalidArgument(name, f"must be at most {inner.most}")


@cache
def _limited(descriptor: Descriptor) -> dict[int, _Limited]:
    limited = {}
    for field in descriptor.fields:
        if field.is_repeated:
            if (most := REPEATED.get(f"{descriptor.name}.{field.name}")) is not None:
                limited[field.number] = _Limited(field, most)
        elif field.message_type is not None and _limited(field.message_type):
            limited[field.number] = _Limited(field, None)
    return limited


class _Malformed(Exception):
    """The bytes are no message."""


def _fields(data: bytes, at: int, end: int) -> Iterator[_Field]:
    """Yield the fields of data[at:end]. Raises _Malformed if decoding would fail."""
    while at < end:
        tag, at = _varint(data, at, end)
        kind, start = tag & 7, at
        if kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind == _BYTES:
            size, start = _varint(data, at, end)
            at = start + size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind not in (_GROUP, _END_GROUP):
            raise _Malformed
        if at > end:
            raise _Malformed
        yield tag >> 3, kind, start, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at < end and (first := data[at]) < 0x80:
        return first, at + 1
    value = 0
    for index, byte in enumerate(data[at : min(at + _VARINT_BYTES, end)]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise _Malformed
