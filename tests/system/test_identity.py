"""Conversations find their agents by what was said in them: the real store, worker and gateway, over HTTP."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from agentmem.v1 import agent_pb2
from tests.system.client import Client
from tests.system.stack import Stack

Messages = list[dict[str, str]]


pytestmark = pytest.mark.asyncio(loop_scope="module")


class Chat:
    """One client that sends its whole conversation each time, as SDKs do."""

    def __init__(self, demo: Stack, first: str) -> None:
        self.url = f"{demo.url}/v1/chat/completions"
        self.messages: Messages = [{"role": "user", "content": first}]
        self.told: list[dict[str, Any]] = []

    async def answer(self, headers: dict[str, str] | None = None, **fields: object) -> dict[str, Any]:
        body = {"model": "demo", "messages": self.messages, "temperature": 0, "max_tokens": 12, **fields}
        async with httpx.AsyncClient(timeout=60) as http:
            response = await http.post(self.url, json=body, headers=headers)
        response.raise_for_status()
        told: dict[str, Any] = response.json()
        self.told.append(told)
        return told

    async def say(self, text: str, **fields: Any) -> dict[str, Any]:
        said = self.told[-1]["choices"][0]["message"]["content"]
        self.messages += [{"role": "assistant", "content": said}, {"role": "user", "content": text}]
        return await self.answer(**fields)

    def agents(self) -> list[str]:
        return [told["agentmem"]["agent_id"] for told in self.told]

    def cached(self) -> list[int]:
        return [told["usage"]["prompt_tokens_details"]["cached_tokens"] for told in self.told]


async def ids(client: Client) -> list[str]:
    answer = await client.agents.ListAgents(agent_pb2.ListAgentsRequest(page_size=1000), timeout=10)
    return [agent.key.agent_id for agent in answer.agents]


@pytest.mark.slow
async def test_conversations_that_share_a_beginning_fork(demo: Stack) -> None:
    facts = "The number of the locker is 417. " * 60  # more than a block: an older state has no tail any more
    first = Chat(demo, facts)
    await first.answer()
    second = Chat(demo, facts)
    second.told = first.told[:1]
    await first.say("What is the number of the locker?")
    await second.say("Where is the boat?")
    assert re.fullmatch("conv-[0-9a-f]{32}", second.agents()[-1])
    assert first.agents()[-1] == first.agents()[0] != second.agents()[-1]
    assert 256 < first.cached()[1] <= second.cached()[-1], "the fork has all that they share"
    await first.say("Where is the boat?")
    await second.say("What is the number of the locker?")
    assert first.agents()[-1] != second.agents()[-1]
    assert "417" in second.told[-1]["choices"][0]["message"]["content"]
    client = await demo.client("gateway")
    assert [(await client.agent(chat.agents()[-1])).turns for chat in (first, second)] == [3, 3]


@pytest.mark.slow
async def test_clients_at_the_same_time_never_overwrite_each_other(demo: Stack) -> None:
    chats = [Chat(demo, "The colour of the door is red.") for _ in range(6)]
    await asyncio.gather(*(chat.answer() for chat in chats))
    assert len({chat.agents()[0] for chat in chats}) == 6
    for chat in chats[1:]:
        chat.told = chats[0].told[:1]  # the same answer, so that all six stand at the same place
    await asyncio.gather(*(chat.say(f"Where is the key number {number}?") for number, chat in enumerate(chats)))
    assert len({chat.agents()[1] for chat in chats}) == 6
    await asyncio.gather(*(chat.say("What is the colour of the door?") for chat in chats))
    for chat in chats:
        assert chat.agents()[2] == chat.agents()[1], "each has gone on with its own"
        assert chat.told[2]["agentmem"]["match"] == "extend"


async def test_other_choices_leave_no_agents(demo: Stack) -> None:
    client = await demo.client("gateway")
    before = await ids(client)
    chat = Chat(demo, "The number of the room is 12.")
    told = await chat.answer(n=3, temperature=2, seed=9)
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in told["choices"]}) > 1
    assert told["usage"]["completion_tokens"] > 12
    assert set(await ids(client)) - set(before) == {told["agentmem"]["agent_id"]}
    again = await Chat(demo, "The number of the room is 12.").answer(n=3, temperature=2, seed=9)
    assert again["choices"] == told["choices"]
