"""A Finder decides which agent's memory a request gets; its worker is a fake with one conversation at most."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from agentmem import errors
from agentmem.conversations import chain_of
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.words import conversation_name, is_anonymous, is_conversation
from gateway.agent_finder import Finder, How, Memory, Wanted

from .fakes import FakeWorker
from .running import eventually

TALK = types_pb2.Messages(messages=[types_pb2.ChatMessage(role="user", content="hi")])
EXPIRY = types_pb2.Expiry(delete_after={"seconds": 60})
OURS = "conv-" + "0" * 32
WANTED = Wanted("ns", "demo", messages=TALK)


def state(version: int) -> types_pb2.AgentVersion:
    return types_pb2.AgentVersion(uid="u", version=version, revision=f"revision {version}".encode())


class Agents(FakeWorker):
    """One stored conversation, or none; what was done to it and to others."""

    def __init__(self) -> None:
        self.found = agent_pb2.FindAgentResponse()
        self.searches: list[agent_pb2.FindAgentRequest] = []
        self.forks: list[agent_pb2.ForkAgentRequest] = []
        self.deleted: list[str] = []
        self.refusal: errors.AgentmemError | None = None
        self.held: asyncio.Event | None = None
        self.unnamed = False

    def has(self, agent_id: str, version: int, at: int | None = None) -> None:
        """An agent at `version`, that was found `at` one."""
        key = types_pb2.AgentKey(namespace="ns", agent_id=agent_id, model_id="demo")
        self.found = agent_pb2.FindAgentResponse(
            agent=agent_pb2.Agent(key=key, version=state(version)),
            matched_messages=1,
            version=state(version if at is None else at),
        )

    async def FindAgent(self, request: Any) -> agent_pb2.FindAgentResponse:
        self.searches.append(request)
        return agent_pb2.FindAgentResponse() if request.request_id and self.unnamed else self.found

    async def ForkAgent(self, request: Any) -> agent_pb2.ForkAgentResponse:
        self.forks.append(request)
        if self.held is not None:
            await self.held.wait()
        if self.refusal is not None:
            raise self.refusal
        key = types_pb2.AgentKey(namespace="ns", agent_id=request.new_agent_id, model_id="demo")
        return agent_pb2.ForkAgentResponse(agent=agent_pb2.Agent(key=key, version={"uid": "f", "version": 1}))

    async def DeleteAgent(self, request: Any) -> agent_pb2.DeleteAgentResponse:
        self.deleted.append(request.key.agent_id)
        return agent_pb2.DeleteAgentResponse(deleted=1)


@pytest.fixture
def worker() -> Agents:
    return Agents()


def finder(worker: Agents, *, keep: bool = True) -> Finder:
    return Finder(worker, keep=keep, expiry=EXPIRY)


async def resolved(worker: Agents, wanted: Wanted = WANTED, *, keep: bool = True) -> Memory:
    async with finder(worker, keep=keep).memory(wanted) as memory:
        memory.committed = True
        return memory


async def test_a_new_conversation_gets_an_agent_that_expires(worker: Agents) -> None:
    memory = await resolved(worker)
    assert re.fullmatch("conv-[0-9a-f]{32}", memory.agent_id)
    assert (memory.how, memory.if_version, memory.expiry) == (How.NEW, 0, EXPIRY)
    (search,) = worker.searches
    assert list(search.message_hashes) == chain_of(TALK)
    assert (search.namespace, search.model_id, search.label) == ("ns", "demo", "")
    await resolved(worker, replace(WANTED, label="team"))
    assert worker.searches[1].label == "team", "it narrows the search"


async def test_name_of_conversation_is_in_the_ids_of_its_agents(worker: Agents) -> None:
    named = replace(WANTED, name="app é")
    (first, again) = [await resolved(worker, replace(named, turn="t")) for _ in range(2)]
    assert re.fullmatch("conv-app é-[0-9a-f]{32}", first.agent_id) and again.agent_id == first.agent_id
    assert (is_conversation(first.agent_id), is_anonymous(first.agent_id)) == (True, False)
    worker.has(first.agent_id, 3)
    assert (await resolved(worker, named)).how is How.CONTINUED
    worker.has(first.agent_id, 3, at=2)
    assert conversation_name((await resolved(worker, named)).agent_id) == "app é"


async def test_an_agent_of_ours_is_gone_on_with(worker: Agents) -> None:
    worker.has(OURS, 3)
    assert await resolved(worker) == Memory(How.CONTINUED, OURS, 3, b"revision 3", committed=True)
    assert worker.forks == []


async def test_an_older_state_is_forked(worker: Agents) -> None:
    worker.has(OURS, 3, at=2)
    memory = await resolved(worker)
    (fork,) = worker.forks
    assert (fork.key.agent_id, fork.at_version, fork.new_agent_id) == (OURS, 2, memory.agent_id)
    assert fork.at_revision == b"revision 2"
    assert fork.expiry == EXPIRY
    assert (memory.how, memory.if_version, memory.expiry) == (How.FORKED, 1, None)


async def test_an_agent_that_somebody_named_is_never_gone_on_with(worker: Agents) -> None:
    for name in ("marco", "conv-1", OURS.upper(), f"{OURS}\n", f" {OURS}"):
        worker.has(name, 3)
        assert (await resolved(worker)).agent_id == worker.forks[-1].new_agent_id != name


async def test_two_at_once_do_not_share_an_agent(worker: Agents) -> None:
    worker.has(OURS, 3)
    one_finder = finder(worker)
    async with one_finder.memory(WANTED) as first:
        async with one_finder.memory(WANTED) as second:
            assert first.agent_id == OURS
            assert second.agent_id != OURS and second.if_version == 0
        async with one_finder.memory(WANTED) as third:
            assert third.agent_id != OURS, "the second one's end is not the first one's"
    async with one_finder.memory(WANTED) as fourth:
        assert fourth.agent_id == OURS
    assert worker.forks == []


@pytest.mark.parametrize("refusal", [errors.NotFound("agent", "x"), errors.Aborted("gone on")])
async def test_what_cannot_be_forked_any_more_begins_anew(worker: Agents, refusal: errors.AgentmemError) -> None:
    worker.has("marco", 3)
    worker.refusal = refusal
    memory = await resolved(worker)
    assert (memory.if_version, memory.expiry) == (0, EXPIRY)


async def test_a_fork_without_a_turn_goes_again(worker: Agents) -> None:
    worker.has("marco", 3)
    with pytest.raises(RuntimeError):
        async with finder(worker).memory(WANTED) as memory:
            raise RuntimeError
    await eventually(lambda: worker.deleted == [memory.agent_id])
    kept = await resolved(worker)
    await asyncio.sleep(0.05)
    assert kept.agent_id not in worker.deleted


async def test_nothing_is_kept_where_that_is_the_setting(worker: Agents) -> None:
    assert await resolved(worker, keep=False) == Memory(How.NONE, committed=True)
    assert await resolved(worker, Wanted("ns", "demo")) == Memory(How.NONE, committed=True), (
        "no messages, no conversation"
    )
    assert worker.searches == []
    named = Wanted("ns", "demo", agent_id="marco", messages=TALK)
    assert await resolved(worker, named, keep=False) == Memory(How.NAMED, "marco", committed=True)


async def test_of_a_very_long_conversation_the_end_is_looked_for(worker: Agents) -> None:
    long = types_pb2.Messages(messages=list(TALK.messages) * 10_001)
    await resolved(worker, Wanted("ns", "demo", messages=long))
    assert list(worker.searches[0].message_hashes) == chain_of(long)[1:]


async def test_a_retry_finds_the_agent_of_its_turn(worker: Agents) -> None:
    worker.has(OURS, 3, at=2)
    memory = await resolved(worker, Wanted("ns", "demo", turn="t1", messages=TALK))
    assert memory == Memory(How.RETRIED, OURS, 2, b"revision 2", committed=True)
    assert [search.request_id for search in worker.searches] == ["t1"]
    assert worker.forks == []


async def test_a_retry_is_looked_for_before_the_turn_that_it_follows(worker: Agents) -> None:
    worker.has(OURS, 3, at=2)
    for name in ("", OURS):
        memory = await resolved(worker, Wanted("ns", "demo", agent_id=name, turn="t1", previous="r1"))
        assert memory == Memory(How.RETRIED, OURS, 2, b"revision 2", committed=True)
    assert [search.request_id for search in worker.searches] == ["t1", "t1"]
    assert worker.forks == []


async def test_a_turn_after_another_one(worker: Agents) -> None:
    after = Wanted("ns", "demo", previous="r1")
    with pytest.raises(errors.NotFound) as missing:
        await resolved(worker, after)
    assert (missing.value.kind, missing.value.name) == ("response", "r1")
    worker.has("marco", 3)
    assert await resolved(worker, after) == Memory(How.CONTINUED, "marco", 3, b"revision 3", committed=True)
    worker.has("marco", 3, at=2)
    assert (await resolved(worker, after)).agent_id == worker.forks[0].new_agent_id
    worker.refusal = errors.NotFound("version", "2")
    with pytest.raises(errors.NotFound) as gone:
        await resolved(worker, after)
    assert gone.value.kind == "response"


async def test_a_fork_that_is_made_while_its_request_leaves_goes_again(worker: Agents) -> None:
    worker.has("marco", 3)
    worker.held = asyncio.Event()
    asking = asyncio.create_task(resolved(worker))
    await eventually(lambda: len(worker.forks) == 1)
    asking.cancel()
    await eventually(lambda: worker.deleted == [worker.forks[0].new_agent_id])


async def test_one_attempt_at_a_turn_at_a_time(worker: Agents) -> None:
    one_finder, wanted = finder(worker), Wanted("ns", "demo", turn="t1", messages=TALK)
    async with one_finder.memory(wanted):
        with pytest.raises(errors.Aborted):
            async with one_finder.memory(wanted):
                pass
        async with one_finder.memory(Wanted("other", "demo", turn="t1", messages=TALK)):
            pass
    async with one_finder.memory(wanted):
        pass


async def test_a_fork_that_a_retry_may_come_back_to_stays(worker: Agents) -> None:
    worker.has("marco", 3)
    worker.unnamed = True
    with pytest.raises(RuntimeError):
        async with finder(worker).memory(Wanted("ns", "demo", turn="t1", messages=TALK)):
            raise RuntimeError
    await asyncio.sleep(0.05)
    assert worker.forks[0].expiry == EXPIRY and worker.deleted == []


@pytest.mark.parametrize(("name", "at"), [("other", 3), ("marco", 2)])
async def test_a_name_that_contradicts_the_turn_before_is_refused(worker: Agents, name: str, at: int) -> None:
    worker.has("marco", 3, at=at)
    with pytest.raises(errors.InvalidArgument) as refused:
        await resolved(worker, Wanted("ns", "demo", agent_id=name, previous="r1"))
    assert refused.value.field == "X-Agent-ID"
    assert worker.forks == []
