"""The storage half of AgentService: what agents look like, paging, and deletion for good."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf import duration_pb2

from agentmem.errors import NotFound
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, refused, wrong_field
from tests.cache_service.rpc.conftest import one_machines
from tests.cache_service.tiers.test_blocks import add, name, on_disk, publish, stage
from tests.cache_service.tiers.test_warm import evicted, evictions, speak, there


async def test_an_agent_is_described(store: Running) -> None:
    first = (await store.cache.CommitTurn(kv.turn([1, 20]))).version
    made = (await store.agent()).create_time.ToNanoseconds()
    while store.store.clock.now().wall <= made:  # it may stand still after a heartbeat of the database
        await asyncio.sleep(0)
    version = (await store.cache.CommitTurn(kv.turn([3], first, keep=2))).version
    agent = await store.agent()
    assert agent.key == kv.key() and agent.version == version
    assert (agent.tokens, agent.turns, agent.text_bytes) == (3, 2, 4)
    assert (agent.tier, agent.warm_bytes, agent.blocks) == (types_pb2.TIER_NONE, 0, 0)
    assert 0 < agent.create_time.ToNanoseconds() < agent.update_time.ToNanoseconds()

    block, window = name(kv.header([1])), name(kv.header([1]), pb.FILE_KIND_WINDOW)
    files = [kv.write(file, kv.header([1])) for file in await stage(store, block, window)]
    await publish(store, files, version, [block, window])
    agent = await store.agent()
    assert (agent.tier, agent.blocks) == (types_pb2.TIER_WARM, 1)
    assert agent.warm_bytes == sum(file.size_bytes for file in files)


async def test_an_unknown_agent_is_not_found(store: Running) -> None:
    await store.cache.CommitTurn(kv.turn([1]))
    for key in (kv.key("eve"), kv.key(namespace="other"), kv.key(model="other")):
        for call in (
            store.agents.GetAgent(agent_pb2.GetAgentRequest(key=key)),
            store.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=key)),
        ):
            error = await refused(call)
            assert isinstance(error, NotFound) and (error.kind, error.name) == ("agent", key.agent_id)


async def listed(store: Running, page_size: int | None = None, **fields: str) -> list[tuple[str, str]]:
    keys: list[tuple[str, str]] = []
    token = ""
    while True:
        request = agent_pb2.ListAgentsRequest(
            **{"namespace": "default", **fields}, page_size=page_size, page_token=token
        )
        response = await store.agents.ListAgents(request)
        assert page_size is None or len(response.agents) <= page_size
        keys += [(agent.key.agent_id, agent.key.model_id) for agent in response.agents]
        token = response.next_page_token
        if not token:
            return keys


async def test_lists_can_be_narrowed_and_stay_in_their_namespace(store: Running) -> None:
    for agent, model, namespace in (
        ("a", "m", "default"),
        ("a", "n", "default"),
        ("b", "m", "default"),
        ("b", "m", "other"),
        ("c", "m", "other"),
    ):
        await store.cache.CommitTurn(kv.turn([1], agent=kv.key(agent, namespace, model)))
    assert await listed(store, 1) == [("a", "m"), ("a", "n"), ("b", "m")]
    assert await listed(store, 1, model_id="m") == [("a", "m"), ("b", "m")]
    assert await listed(store, 1, agent_id="a") == [("a", "m"), ("a", "n")]
    assert await listed(store, 1, agent_id="c") == []
    assert await listed(store, namespace="other") == [("b", "m"), ("c", "m")]


async def test_pages_go_on_where_they_were_when_agents_come_and_go(store: Running) -> None:
    for agent in "abde":
        await store.cache.CommitTurn(kv.turn([1], agent=kv.key(agent)))
    first = await store.agents.ListAgents(agent_pb2.ListAgentsRequest(namespace="default", page_size=2))
    await store.delete(kv.key("b"))
    await store.cache.CommitTurn(kv.turn([1], agent=kv.key("c")))
    await store.cache.CommitTurn(kv.turn([1], agent=kv.key("aa")))
    second = await store.agents.ListAgents(
        agent_pb2.ListAgentsRequest(namespace="default", page_size=2, page_token=first.next_page_token)
    )
    assert [agent.key.agent_id for agent in second.agents] == ["c", "d"]


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("namespace", agent_pb2.ListAgentsRequest()),
        ("page_size", agent_pb2.ListAgentsRequest(namespace="n", page_size=0)),
        ("page_size", agent_pb2.ListAgentsRequest(namespace="n", page_size=1001)),
        ("page_size", agent_pb2.ListAgentsRequest(namespace="n", page_size=-1)),
        ("page_token", agent_pb2.ListAgentsRequest(namespace="n", page_token="!")),
        ("page_token", agent_pb2.ListAgentsRequest(namespace="n", page_token="W10=")),
        ("page_token", agent_pb2.ListAgentsRequest(namespace="n", page_token="é")),
        ("model_id", agent_pb2.ListAgentsRequest(namespace="n", model_id="m" * 257)),
    ],
)
async def test_a_list_that_cannot_be_is_refused(
    store: Running, field: str, request_: agent_pb2.ListAgentsRequest
) -> None:
    assert await wrong_field(store.agents.ListAgents(request_)) == field


TOKENS = list(range(0x5EC12E7, 0x5EC12E7 + 400))
TEXT = b"a text that must not stay "


def traces(data: Path, *patterns: bytes) -> list[str]:
    files = [path for path in data.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(pattern in path.read_bytes() for pattern in patterns)]


def secret_turn(agent: str, **fields: object) -> pb.CommitTurnRequest:
    request = pb.CommitTurnRequest(
        key=kv.key(agent),
        token_ids=TOKENS,
        text=TEXT * len(TOKENS),
        offsets=[len(TEXT) * (index + 1) for index in range(len(TOKENS))],
        tokenizer_hash="t",
        request_id="r",
        record=pb.TurnRecord(delta={"text": (TEXT * 50).decode(), "token_ids": TOKENS}),  # type: ignore[arg-type]
        label=f"label of {agent}",
    )
    request.MergeFrom(pb.CommitTurnRequest(**fields))  # type: ignore[arg-type]
    return request


async def test_kv_of_a_turn_that_was_never_committed_goes_too(store: Running) -> None:
    await add(store, [1], None, "ada")
    assert len(on_disk(store.data)) == 1
    response = await store.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=kv.key("ada"), allow_missing=True))
    assert response.deleted == 0 and response.freed_bytes > 0 and on_disk(store.data) == []


async def test_an_empty_model_id_deletes_the_agent_on_all_models(store: Running) -> None:
    for model in ("m", "n"):
        await store.cache.CommitTurn(kv.turn([1], agent=kv.key("ada", model=model)))
    await store.cache.CommitTurn(kv.turn([1], agent=kv.key("ada", namespace="other")))
    assert (await store.delete(kv.key("ada", model=""))).deleted == 2
    assert await listed(store) == [] and len(await listed(store, namespace="other")) == 1


SECOND = 10**9


async def set_ttl(store: Running, agent: str, **times: float) -> agent_pb2.Agent:
    durations = {field: duration_pb2.Duration(seconds=int(value)) for field, value in times.items()}
    request = agent_pb2.SetAgentTtlRequest(key=kv.key(agent), **durations)  # type: ignore[arg-type]
    return (await store.agents.SetAgentTtl(request)).agent


async def test_an_idle_agents_kv_expires_and_its_ledger_stays(store: Running) -> None:
    await speak(store, "a", [0, 1])
    await speak(store, "b", [2])
    agent = await set_ttl(store, "a", ttl=60)
    assert (agent.ttl.seconds, agent.HasField("delete_after")) == (60, False)
    used = time.time_ns()
    await store.store.upkeep(used + 50 * SECOND)
    assert await there(store, 0, 1, 2) == [0, 1, 2]
    await store.store.upkeep(used + 61 * SECOND)
    assert (await there(store, 0, 1, 2), await evicted(store, "a")) == ([2], True)
    assert evictions(store, "ttl") == 1
    assert (await store.agent("a")).tokens == 1


@pytest.mark.slow
async def test_a_use_puts_the_end_off(store: Running) -> None:
    await speak(store, "a", [0])
    await set_ttl(store, "a", ttl=1)
    began = time.time_ns()
    while time.time_ns() < began + SECOND:
        await store.open("a")
    await store.store.upkeep(began + SECOND + SECOND // 10)
    assert await there(store, 0) == [0]


async def test_a_pin_does_not_keep_what_the_agents_own_ttl_ends(store: Running) -> None:
    await speak(store, "a", [0])
    await store.agents.PinAgent(agent_pb2.PinAgentRequest(key=kv.key("a"), pinned=True))
    await set_ttl(store, "a", ttl=1)
    await store.store.upkeep(time.time_ns() + 2 * SECOND)
    assert await there(store, 0) == []


async def test_an_agent_ends_with_its_text_and_times_are_replaced(store: Running) -> None:
    await speak(store, "a", [0])
    await set_ttl(store, "a", ttl=1, delete_after=1)
    assert not (await set_ttl(store, "a")).HasField("ttl"), "an absent one is cleared"
    await store.store.upkeep(time.time_ns() + 9 * SECOND)
    assert (await store.agent("a")).tokens == 1
    await set_ttl(store, "a", delete_after=1)
    await store.store.upkeep(time.time_ns() + 9 * SECOND)
    await fails(store.agent("a"), "NOT_FOUND")
    assert on_disk(store.data) == []


@pytest.mark.parametrize(
    "duration",
    [duration_pb2.Duration(), duration_pb2.Duration(seconds=-1), duration_pb2.Duration(seconds=101 * 366 * 86400)],
)
async def test_times_that_cannot_be_are_refused(store: Running, duration: duration_pb2.Duration) -> None:
    await speak(store, "a", [0])
    for field in ("ttl", "delete_after"):
        request = agent_pb2.SetAgentTtlRequest(key=kv.key("a"), **{field: duration})  # type: ignore[arg-type]
        assert await wrong_field(store.agents.SetAgentTtl(request)) == field


async def test_the_unknown_is_not_found_and_nonsense_refused(store: Running) -> None:
    calls = (
        lambda: store.agents.PinAgent(agent_pb2.PinAgentRequest(key=kv.key("x"), pinned=True)),
        lambda: set_ttl(store, "x", ttl=1),
        lambda: store.evict("x", types_pb2.TIER_HOT),
        lambda: store.evict("x", types_pb2.TIER_WARM),
    )
    for call in calls:
        await fails(call(), "NOT_FOUND")
    for tier in (types_pb2.TIER_NONE, 77):
        assert await wrong_field(store.evict("x", tier)) == "tier"  # type: ignore[arg-type]


_SECONDS = 30.0


class Held:
    """A transaction that is held right before its commit."""

    def __init__(self) -> None:
        self.is_there = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, _: sqlite3.Connection) -> None:
        self.is_there.set()
        assert self.go_on.wait(_SECONDS)


@contextmanager
def next_transaction(store: Running) -> Iterator[Held]:
    """Hold the next transaction, at most until the end of the block."""
    held, hooks = Held(), store.store._database.before_commit
    hooks.append(held)
    try:
        yield held
    finally:
        held.go_on.set()
        hooks.remove(held)


@one_machines
@pytest.mark.parametrize("act", ["commit", "trim", "restore", "forget"])
async def test_files_of_what_is_dropped_go_also_if_nobody_waits_for_it(store: Running, act: str) -> None:
    """Their rows are gone, so nothing would count them, and nothing delete them before the next start."""
    await add(store, [1], await store.commit([1]))
    await store.snapshot("kept")
    for token in range(2, 6):
        await add(store, [token], await store.commit([token], keep=0))
    before = len(on_disk(store.data))
    await store.forget("kept")
    assert len(on_disk(store.data)) == before, "an automatic snapshot has its file, too, and is the oldest of four"
    call = {
        "commit": lambda: store.commit([9], keep=0),
        "trim": lambda: store.trim(0),
        "restore": lambda: store.restore("auto-2"),
        "forget": lambda: store.forget("auto-1"),
    }[act]
    with next_transaction(store) as held:
        task = asyncio.ensure_future(call())
        assert await asyncio.to_thread(held.is_there.wait, _SECONDS)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0.2)  # until the store has heard of it, or this would test nothing
    assert task.cancelled()
    await store.store._database.read(lambda _: None)  # after the transaction
    async with asyncio.timeout(_SECONDS):
        while len(on_disk(store.data)) >= before:
            await asyncio.sleep(0.01)
