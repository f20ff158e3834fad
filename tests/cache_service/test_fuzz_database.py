"""Seeded damage of the database's pages: the store refuses to start, or a ledger is what it was, or its read fails.

SQLite has no checksums of pages, so most flipped bits are read as they are; the digests of segments find them. Few of
the mutations get so far: with AGENTMEM_FULL_MATRIX=1 there are enough for that, and each column has a test in
ledger/test_segments.py.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import grpc
import pytest

from agentmem.errors import AgentmemError
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.files.directory import DirectoryUnusable
from cache_service.ledger.schema import ForeignDatabase, SchemaTooNew
from cache_service.offline.database import DatabaseDamaged
from tests.faults.mutations import DATABASE
from tests.full_matrix import FULL

from . import kv
from .conftest import Running, fails, running
from .interrupted import template
from .invariants import AGENTS
from .scenarios import ROOMY, version_before

__all__ = ["template"]
MUTATIONS = 1000 if FULL else 100
REFUSED = (grpc.StatusCode.DATA_LOSS, grpc.StatusCode.INTERNAL)
Answers = dict[str, pb.Ledger | grpc.StatusCode]


async def ask(store: Running) -> Answers:
    return {f"{key.namespace}/{key.agent_id}": await answer(store, key) for key in AGENTS}


async def answer(store: Running, key: types_pb2.AgentKey) -> pb.Ledger | grpc.StatusCode:
    try:
        opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=key, peek=True))
    except grpc.aio.AioRpcError as error:
        return error.code()
    for turn in opened.ledger.turns:  # a conversation is found by these, which no digest covers
        turn.ClearField("messages")
        turn.ClearField("message_hash")
    return opened.ledger


async def work(store: Running) -> list[grpc.StatusCode]:
    """Turns, a fork and a trim, on top of whatever is there; what was refused."""
    refused = []
    for number, agent in enumerate(("ada", "eve", "mallory")):
        key = kv.key(agent)
        calls = (
            lambda key=key, agent=agent, number=number: commit(store, agent, number),
            lambda key=key, agent=agent: store.agents.ForkAgent(
                agent_pb2.ForkAgentRequest(key=key, new_agent_id=f"fork of {agent}", keep_tokens=2)
            ),
            lambda key=key: store.agents.TrimAgent(agent_pb2.TrimAgentRequest(key=key, keep_tokens=1)),
        )
        for call in calls:
            try:
                await call()
            except grpc.aio.AioRpcError as error:
                refused.append(error.code())
    return refused


async def commit(store: Running, agent: str, number: int) -> None:
    base = await version_before(store, agent, 0)
    opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key(agent), peek=True))
    base.version = opened.version.version
    await store.cache.CommitTurn(kv.turn([9, number], base, min(2, len(opened.ledger.token_ids)), kv.key(agent)))


def wrong(found: Answers, right: Answers) -> list[str]:
    return [name for name, each in found.items() if isinstance(each, pb.Ledger) and each != right[name]]


@pytest.mark.slow
async def test_damaged_pages_never_make_a_wrong_token(
    data: Path, template: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(data.with_name("right"), ROOMY) as store:
        pass
    shutil.copytree(template, data)
    async with running(data, ROOMY) as store:
        right = await ask(store)
    content, other = (data / "store.db").read_bytes(), (data.with_name("right") / "store.db").read_bytes()
    outcomes: Counter[str] = Counter()
    problems: list[str] = []
    for seed in range(MUTATIONS):
        rng = random.Random(seed)
        mutation = rng.choice(DATABASE)
        shutil.rmtree(data)
        shutil.copytree(template, data)
        (data / "store.db").write_bytes(mutation(rng, content, other))
        try:
            outcomes[await one(data, right, f"seed {seed}, {mutation.__name__}")] += 1
        except Exception as error:  # noqa: BLE001 - collected
            problems.append(f"seed {seed}, {type(error).__name__}: {error}".split("\n", 1)[0])
    with capsys.disabled():
        print(f"\n{MUTATIONS} damaged databases: {dict(outcomes)}")  # noqa: T201 - what the damage did
    assert not problems, f"{len(problems)} of {MUTATIONS}:\n" + "\n".join(problems[:20])
    assert outcomes.keys() >= {"not started", "harmless", *(["refused"] if FULL else [])}


TOLD = (DirectoryUnusable, DatabaseDamaged, ForeignDatabase, SchemaTooNew, AgentmemError, OSError, sqlite3.Error)
"""Errors of a process that does not start, told in words."""


async def one(data: Path, right: Answers, what: str) -> str:
    try:
        async with running(data, ROOMY) as store:
            found = await ask(store)
            assert wrong(found, right) == [], what
            refused = [each for each in found.values() if isinstance(each, grpc.StatusCode)]
            assert set(refused) <= set(REFUSED), (what, refused)
            counted = store.metric("agentmem_ledger_failures_total", reason="damaged") or 0
            assert counted >= refused.count(grpc.StatusCode.DATA_LOSS), what
            assert counted or not refused, (what, refused)
            await work(store)
            after = await ask(store)
            await check_untouched(after, right, what)
    except TOLD:
        return "not started"
    return "refused" if refused else "harmless"


async def check_untouched(after: Answers, right: Answers, what: str) -> None:
    """Nobody who was not spoken to has changed, though the damage may have spread."""
    others = {name: each for name, each in after.items() if name.startswith("other/")}
    assert wrong(others, right) == [], f"{what}, after work"


async def test_a_damaged_ledger_is_refused_with_what_to_do(data: Path, template: Path) -> None:
    shutil.copytree(template, data)
    connection = sqlite3.connect(data / "store.db", isolation_level=None)
    connection.execute(
        "UPDATE segments SET token_ids = CAST(x'07000000' || substr(token_ids, 5) AS BLOB) WHERE id ="
        " (SELECT head_segment FROM agents WHERE agent_id = 'eve')"
    )
    connection.close()
    async with running(data, ROOMY) as store:
        for _ in range(2):
            details = await fails(store.open("eve"), "DATA_LOSS")
            assert "'eve'" in details and "agentmem store check" in details
        assert store.metric("agentmem_ledger_failures_total", reason="damaged") == 2
        assert (await store.open()).version.version == 7
