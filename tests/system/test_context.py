"""An agent whose memory outgrows the model's context goes on: chats of several contexts, on a real stack."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentmem.v1 import agent_pb2, types_pb2
from tests.full_matrix import FULL
from tests.system.client import Client, Turn, append, chat, until
from tests.system.stack import Stack, running

CONTEXT = 512
CONTEXTS = 3 if FULL else 2
FACT = "The colour of the boat is green."
QUESTION = "What is the colour of the boat?"
SYSTEM = f"You are marco. {FACT}"
FILLER = ("The number of the locker is 417." * 4, "The key is in the cellar." * 5, "Where is the key?")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    table: Path = tmp_path_factory.mktemp("models") / "models.toml"
    table.write_text(f'[models.short]\nsource = "demo"\ncontext_length = {CONTEXT}\n')
    flags = ("--models", str(table))
    async with running("demo", "store", "worker", "gateway", worker_flags=flags) as started:
        yield started


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def begin(client: Client, agent: str, **arguments: Any) -> Turn:
    messages = chat(("system", SYSTEM), ("user", QUESTION))
    return await client.turn(agent, messages=messages, max_tokens=16, **arguments)


def tokens(turn: Turn) -> int:
    return turn.finished.usage.prompt_tokens + turn.finished.usage.completion_tokens


async def long(client: Client, agent: str, contexts: int) -> list[types_pb2.ContextTrim]:
    """Speak until the agent has had so many contexts' tokens, and room again; what was dropped on the way."""
    had, trims = 0, []
    for number in range(99):
        asked = agent_pb2.ProbeAgentRequest(key=client.key(agent), append=append(FILLER[number % 3]))
        probed = await client.agents.ProbeAgent(asked)
        turn = await client.say(agent, FILLER[number % 3], max_tokens=16)
        assert turn.finished.durable
        assert tokens(turn) <= CONTEXT
        if turn.started.HasField("context_trim"):
            trims.append(turn.started.context_trim)
            assert probed.context_trim.snapshot == trims[-1].snapshot, "a probe says it ahead"
            had += turn.started.context_trim.dropped_tokens
            if had + tokens(turn) > contexts * CONTEXT:
                return trims
    pytest.fail("this takes too many turns")


@pytest.mark.slow
async def test_contexts_of_turns_and_the_system_prompt_is_still_known(stack: Stack) -> None:
    client = await stack.client("gateway", "short")
    first = await begin(client, "ada")
    trims = await long(client, "ada", CONTEXTS)
    assert len(trims) >= CONTEXTS
    assert all(trim.policy == types_pb2.CONTEXT_POLICY_TRIM and trim.dropped_turns for trim in trims)
    answer = await client.say("ada", QUESTION, max_tokens=16)
    assert (answer.text, first.text) == (FACT, FACT)
    turns = (await client.agents.ListTurns(agent_pb2.ListTurnsRequest(key=client.key("ada"), include_text=True))).turns
    said = [(message.role, message.content) for message in turns[-1].messages]
    assert said == [("user", QUESTION), ("assistant", FACT)], "turns are read after a cut"
    assert sum(each.tokens for each in turns) == (await client.agent("ada")).tokens

    async def written() -> bool:
        agent = await client.agent("ada")
        return agent.warm_tokens == agent.tokens

    await until(written)
    before = await stack.ledger("ada", "short")
    stack.kill("worker", "store")
    await stack.up("store", "worker")
    client = await stack.client("worker", "short")
    assert await stack.ledger("ada", "short") == before
    again = await client.say("ada", QUESTION, max_tokens=16)
    assert (again.text, again.match) == (FACT, "EXTEND")
    assert again.cached.get("warm", 0) > 0
