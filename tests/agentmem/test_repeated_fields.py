"""Elements of repeated fields are limited, and counted before decoding."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

import agentmem.v1
from agentmem.errors import InvalidArgument
from agentmem.limits import REPEATED
from agentmem.process.wire import MAX_FIELDS, check_counts
from agentmem.v1 import inference_pb2
from tests.system.hostile import SERVICES
from tests.wire import tagged, varint

GENERATE = inference_pb2.GenerateRequest.DESCRIPTOR


def ways(descriptor: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    for field in descriptor.fields:
        if field.is_repeated:
            yield (field,)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from ((field, *way) for way in ways(field.message_type))


def name_of(field: FieldDescriptor) -> str:
    return f"{field.containing_type.name}.{field.name}"


def test_each_repeated_field_of_a_caller_has_a_limit() -> None:
    """Whoever adds one says in agentmem/limits.py how many elements it has at most."""
    sent = {name_of(way[-1]) for service in SERVICES for each in service.methods for way in ways(each.input_type)}
    assert sent == REPEATED.keys()


LIMITED = [
    pytest.param(each.input_type, way, id=f"{each.name}-{'.'.join(field.name for field in way)}")
    for service in SERVICES
    for each in service.methods
    for way in ways(each.input_type)
]


def with_elements(way: tuple[FieldDescriptor, ...], count: int) -> bytes:
    *outer, field = way
    packed = field.type == FieldDescriptor.TYPE_UINT32
    data = tagged(field.number, b"\1" * count) if packed else tagged(field.number, b"") * count
    for each in reversed(outer):
        data = tagged(each.number, data)
    return data


@pytest.mark.parametrize(("descriptor", "way"), LIMITED)
def test_one_more_is_refused_by_its_name(descriptor: Descriptor, way: tuple[FieldDescriptor, ...]) -> None:
    most = REPEATED[name_of(way[-1])]
    check_counts(descriptor, with_elements(way, most))
    with pytest.raises(InvalidArgument, match=f"must be at most {most}") as refused:
        check_counts(descriptor, with_elements(way, most + 1))
    assert refused.value.field == ".".join(field.name for field in way)


def test_elements_are_counted_over_all_parts_of_a_message() -> None:
    """A message may come in pieces, which decoding puts together; numbers may be packed in some and not in others."""
    stops = inference_pb2.GenerateRequest(stop=["a"] * 16).SerializeToString()
    check_counts(GENERATE, stops)
    with pytest.raises(InvalidArgument, match="stop: must be at most 16"):
        check_counts(GENERATE, stops + tagged(500, b"") + tagged(9, b"a"))
    ids = tagged(6, tagged(1, b"\x80\x01" * (4 << 20)))
    check_counts(GENERATE, ids)
    with pytest.raises(InvalidArgument, match=r"token_ids\.ids"):
        check_counts(GENERATE, ids + tagged(6, b"\x08\x01"))


def test_fields_that_are_read_one_by_one_are_few() -> None:
    unpacked = tagged(6, b"\x08\x01" * (MAX_FIELDS - 1))
    check_counts(GENERATE, unpacked)
    for more in (unpacked + b"\x08\x01", tagged(3, b"") * (MAX_FIELDS + 1), (varint(2000 << 3) + b"\0") * MAX_FIELDS):
        with pytest.raises(InvalidArgument, match="fields"):
            check_counts(GENERATE, more + more)


def test_groups_are_refused() -> None:
    """Decoding skips them, and what is in them would not be counted."""
    group = varint(2000 << 3 | 3) + varint(2000 << 3 | 4)
    assert inference_pb2.GenerateRequest.FromString(group) is not None
    with pytest.raises(InvalidArgument, match="groups"):
        check_counts(GENERATE, group)


def test_what_does_not_parse_is_left_to_decoding() -> None:
    for data in (b"\xff" * (16 << 20), b"\x1a", tagged(3, b"")[:-1] + b"\x09", b"\x1a\x05\x0a\x09ab", b"\x1f"):
        check_counts(GENERATE, data)


@given(st.binary(max_size=64))
def test_any_bytes_are_counted_or_refused(data: bytes) -> None:
    with suppress(InvalidArgument):
        check_counts(GENERATE, data)


def test_contract_and_table_say_the_same() -> None:
    proto = (Path(agentmem.v1.__file__).parent / "agent.proto").read_text()
    for field in ("FindAgentRequest.message_hashes", "SetTurnHintsRequest.hints"):
        assert re.search(rf"At most {REPEATED[field]}\b", proto)
