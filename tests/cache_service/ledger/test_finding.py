"""FindAgent over the socket: the longest stored conversation that begins the given one, present or past."""

import pytest

from agentmem.conversations import message_hashes
from agentmem.v1 import agent_pb2, types_pb2
from tests.cache_service import kv
from tests.cache_service.conftest import Running, wrong_field

TALK = message_hashes([{"role": "user", "content": str(number)} for number in range(1200)])
OTHER = message_hashes([{"role": "user", "content": "0"}, {"role": "user", "content": "else"}])


async def talk(
    store: Running,
    agent: str,
    hashes: list[bytes],
    base: types_pb2.AgentVersion | None = None,
    keep: int = 0,
    namespace: str = "default",
    model: str = "demo",
    label: str = "",
) -> types_pb2.AgentVersion:
    key = kv.key(agent, namespace, model)
    turn = kv.turn([len(hashes)], base, keep, key, message_hashes=hashes, label=label)
    return (await store.cache.CommitTurn(turn)).version


async def find(store: Running, hashes: list[bytes], **fields: str) -> tuple[str, int, int] | None:
    wanted = {"namespace": "default", "model_id": "demo", **fields}
    found = await store.agents.FindAgent(agent_pb2.FindAgentRequest(**wanted, message_hashes=hashes))
    if not found.HasField("agent"):
        assert not found.matched_messages
        return None
    assert found.version.uid == found.agent.version.uid
    return found.agent.key.agent_id, found.matched_messages, found.version.version


async def test_a_past_state_is_found_where_its_agent_went_on_otherwise(store: Running) -> None:
    first = await talk(store, "a", TALK[:2])
    second = await talk(store, "a", TALK[:4], first, 1)
    await talk(store, "a", OTHER, second, 1)
    assert await find(store, TALK[:8]) == ("a", 4, 2)
    request = agent_pb2.ForkAgentRequest(key=kv.key("a"), new_agent_id="b", at_version=2)
    assert (await store.agents.ForkAgent(request)).agent.tokens == 2
    assert await find(store, TALK[:8]) == ("b", 4, 1), "a present state comes first"
    await store.delete(kv.key("b"))
    await store.delete(kv.key("a"))
    assert await find(store, TALK[:8]) is None


async def test_of_equals_the_one_used_last(store: Running) -> None:
    for agent in "abc":
        await talk(store, agent, TALK[:2])
    assert await find(store, TALK[:2]) == ("c", 2, 1)
    await store.open("b")
    await talk(store, "x", OTHER)  # writes down who was used
    assert await find(store, TALK[:2]) == ("b", 2, 1)


async def test_namespaces_models_and_labels_are_apart(store: Running) -> None:
    await talk(store, "a", TALK[:2], label="blue")
    await talk(store, "b", TALK[:3], label="red")
    await talk(store, "c", TALK[:4], namespace="other")
    await talk(store, "d", TALK[:5], model="another")
    assert await find(store, TALK[:6]) == ("b", 3, 1)
    assert await find(store, TALK[:6], label="blue") == ("a", 2, 1)
    assert await find(store, TALK[:6], label="green") is None
    assert await find(store, TALK[:6], namespace="other") == ("c", 4, 1)
    assert await find(store, TALK[:6], model_id="another") == ("d", 5, 1)


async def test_a_turn_that_is_no_conversation_is_not_found(store: Running) -> None:
    version = await talk(store, "a", TALK[:2])
    await store.cache.CommitTurn(kv.turn([5], version, 1, kv.key("a")))
    assert await find(store, TALK[:2]) == ("a", 2, 1)
    await store.trim(1, "a")
    found = await find(store, TALK[:2])
    assert found is not None and found[:2] == ("a", 2)


async def test_a_turn_is_found_by_its_name(store: Running) -> None:
    async def named(request_id: str, **fields: str) -> tuple[str, int] | None:
        wanted = {"namespace": "default", "model_id": "demo", "request_id": request_id, **fields}
        found = await store.agents.FindAgent(agent_pb2.FindAgentRequest(**wanted))
        assert found.matched_messages == 0
        return (found.agent.key.agent_id, found.version.version) if found.HasField("agent") else None

    async def turn(agent: str, request_id: str, base: types_pb2.AgentVersion | None = None) -> types_pb2.AgentVersion:
        return (await store.cache.CommitTurn(kv.turn([1], base, 0, kv.key(agent), request_id=request_id))).version

    first = await turn("a", "one")
    await turn("a", "two", first)
    await turn("b", "")
    assert await named("one") == ("a", 1)
    assert await named("two") == ("a", 2)
    assert await named("three") is None
    assert await named("one", namespace="other") is None
    assert await named("one", model_id="another") is None
    await turn("c", "one")
    assert await named("one") == ("c", 1), "the last one of that name"
    await store.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=kv.key("c")))
    assert await named("one") == ("a", 1)


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("namespace", agent_pb2.FindAgentRequest(model_id="m")),
        ("model_id", agent_pb2.FindAgentRequest(namespace="n")),
        ("label", agent_pb2.FindAgentRequest(namespace="n", model_id="m", label="x" * 257)),
        ("message_hashes[1]", agent_pb2.FindAgentRequest(namespace="n", model_id="m", message_hashes=[TALK[0], b"x"])),
        ("request_id", agent_pb2.FindAgentRequest(namespace="n", model_id="m", request_id="x" * 129)),
        ("request_id", agent_pb2.FindAgentRequest(namespace="n", model_id="m", request_id="x", label="y")),
        ("message_hashes", agent_pb2.FindAgentRequest(namespace="n", model_id="m", message_hashes=TALK[:1] * 10_001)),
    ],
)
async def test_nonsense_is_refused(store: Running, field: str, request_: agent_pb2.FindAgentRequest) -> None:
    assert await wrong_field(store.agents.FindAgent(request_)) == field


async def test_a_ledger_tells_which_conversation_each_of_its_turns_ended_with(store: Running) -> None:
    first = await talk(store, "ada", TALK[:2])
    await talk(store, "ada", TALK[:4], first, 1)
    await store.fork("eve")
    for agent in ("ada", "eve"):
        opened = await store.open(agent)
        turns = [(turn.messages, turn.message_hash) for turn in opened.ledger.turns]
        assert turns == [(2, TALK[1]), (4, TALK[3])]
