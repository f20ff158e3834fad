import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import InvalidArgument
from agentmem.v1 import types_pb2
from agentmem.validation import MAX_PART_BYTES, AgentKey, check_text

parts = st.text(min_size=1, max_size=64)


@given(namespace=parts, agent_id=parts, model_id=parts)
def test_any_text_is_a_key_and_comes_back(namespace: str, agent_id: str, model_id: str) -> None:
    key = AgentKey(namespace, agent_id, model_id)
    assert AgentKey.from_proto(key.to_proto()) == key
    assert AgentKey.from_proto(types_pb2.AgentKey.FromString(key.to_proto().SerializeToString())) == key


@given(text=st.text(st.characters(codec="utf-8"), max_size=400))
def test_length_counts_bytes(text: str) -> None:
    if 1 <= len(text.encode()) <= MAX_PART_BYTES:
        assert check_text("f", text) == text
    else:
        with pytest.raises(InvalidArgument) as caught:
            check_text("f", text)
        assert caught.value.field == "f"


def test_lone_surrogates_are_no_text() -> None:
    with pytest.raises(InvalidArgument, match="surrogate"):
        check_text("f", "a\ud800")


@pytest.mark.parametrize("field", ["namespace", "agent_id", "model_id"])
@pytest.mark.parametrize("value", ["", "x" * 257])
def test_the_field_is_named(field: str, value: str) -> None:
    fields = {"namespace": "n", "agent_id": "a", "model_id": "m", field: value}
    with pytest.raises(InvalidArgument) as caught:
        AgentKey.from_proto(types_pb2.AgentKey(**fields))
    assert caught.value.field == f"key.{field}"


def test_empty_parts_where_they_are_allowed() -> None:
    anonymous = types_pb2.AgentKey(namespace="n", model_id="m")
    assert AgentKey.from_proto(anonymous, anonymous=True) == ("n", "", "m")
    on_any_model = types_pb2.AgentKey(namespace="n", agent_id="a")
    assert AgentKey.from_proto(on_any_model, any_model=True) == ("n", "a", "")
    for key in (anonymous, on_any_model):
        with pytest.raises(InvalidArgument):
            AgentKey.from_proto(key)
    with pytest.raises(InvalidArgument):
        AgentKey.from_proto(types_pb2.AgentKey(agent_id="a", model_id="m"), anonymous=True, any_model=True)
