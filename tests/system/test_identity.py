"""Conversations find their agents by what was said in them: the real store, worker and gateway, over HTTP."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import httpx
import pytest

from tests.system.shared import of_module
from tests.system.stack import Stack
from tests.tiny_models import CHATML, write_llama

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Chat:
    """One client that sends its whole conversation each time, as SDKs do."""

    def __init__(self, demo: Stack, first: str) -> None:
        self.url = f"{demo.url}/v1/chat/completions"
        self.messages = [{"role": "user", "content": first}]
        self.told: list[dict[str, Any]] = []

    async def answer(self) -> None:
        body = {"model": "demo", "messages": self.messages, "temperature": 0, "max_tokens": 12}
        async with httpx.AsyncClient(timeout=60) as http:
            response = await http.post(self.url, json=body)
        self.told.append(response.raise_for_status().json())

    async def say(self, text: str) -> None:
        said = self.told[-1]["choices"][0]["message"]["content"]
        self.messages += [{"role": "assistant", "content": said}, {"role": "user", "content": text}]
        await self.answer()

    def agents(self) -> list[str]:
        return [told["agentmem"]["agent_id"] for told in self.told]


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


TIMED = "It is {{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}.\n" + CHATML
"""A template whose clock goes on between any two renderings."""
FACTS = "The colour of the boat is green, and the house by the sea is red. " * 10
timed = of_module("tiny", partial(write_llama, template=TIMED))


async def test_agents_found_by_content_keep_the_time_of_their_template(timed: Stack) -> None:
    said = [{"role": "user", "content": FACTS}]
    async with httpx.AsyncClient(base_url=timed.url, timeout=60) as http:

        async def answered(**headers: str) -> Any:
            body = {"model": "tiny", "messages": said, "temperature": 0, "max_tokens": 8}
            return (await http.post("/v1/chat/completions", json=body, headers=headers)).json()

        first = await answered()
        agent = first["agentmem"]["agent_id"]
        said += [first["choices"][0]["message"], {"role": "user", "content": "And now?"}]
        second = await answered()
        assert second["agentmem"]["agent_id"] == agent
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]
        client = await timed.client("gateway")
        assert (await client.agent(agent)).template_time
        said += [second["choices"][0]["message"], {"role": "user", "content": "And now?"}]
        moved = await answered(**{"X-Agent-Template-Time": "1987-03-05T21:45:07"})
        assert moved["usage"]["prompt_tokens_details"]["cached_tokens"] < 16
        assert (await client.agent(agent)).template_time == "1987-03-05T21:45:07"
        refused = await answered(**{"X-Agent-Template-Time": "tomorrow"})
        assert refused["error"]["param"] == "X-Agent-Template-Time"


@pytest.mark.slow
async def test_conversations_that_share_a_beginning_fork(demo: Stack) -> None:
    facts = "The number of the locker is 417. " * 60  # more than a block: an older state has no tail any more
    first = Chat(demo, facts)
    await first.answer()
    second = Chat(demo, facts)
    second.told = first.told[:1]
    await first.say("What is the number of the locker?")
    await second.say("Where is the boat?")
    assert second.agents()[-1].startswith("conv-")
    assert first.agents()[-1] == first.agents()[0] != second.agents()[-1]
    cached = [chat.told[1]["usage"]["prompt_tokens_details"]["cached_tokens"] for chat in (first, second)]
    assert 256 < cached[0] <= cached[1], "the fork has all that they share"
    await first.say("Where is the boat?")
    await second.say("What is the number of the locker?")
    assert first.agents()[-1] != second.agents()[-1]
    assert "417" in second.told[-1]["choices"][0]["message"]["content"]
    client = await demo.client("gateway")
    assert [(await client.agent(chat.agents()[-1])).turns for chat in (first, second)] == [3, 3]
