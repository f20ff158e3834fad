import pytest
from google.protobuf.descriptor import EnumDescriptor

from agentmem.v1 import agent_pb2, inference_pb2, model_pb2, types_pb2
from agentmem.words import short_name, short_names

ENUMS = [
    enum
    for file in (types_pb2, inference_pb2, agent_pb2, model_pb2)
    for enum in file.DESCRIPTOR.enum_types_by_name.values()
]


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.name)
def test_every_value_but_the_first_has_a_short_name(enum: EnumDescriptor) -> None:
    names = short_names(enum)
    assert names.keys() == {value.number for value in enum.values} - {0}
    assert not {value.name.lower() for value in enum.values}.intersection(names.values())  # cut, all of them


def test_short_names() -> None:
    tier = types_pb2.Tier.DESCRIPTOR
    assert short_name(tier, types_pb2.TIER_HOT) == "hot"
    assert short_name(types_pb2.MissReason.DESCRIPTOR, types_pb2.MISS_REASON_NOT_TRIMMABLE) == "not_trimmable"
    assert short_name(tier, types_pb2.TIER_UNSPECIFIED) == short_name(tier, 1000) == ""
