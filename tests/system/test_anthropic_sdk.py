"""The unmodified SDK of Anthropic against a real demo: nothing but the base URL is changed."""

from dataclasses import dataclass, field
from typing import Any

import anthropic
import pytest
import pytest_asyncio

from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

SYSTEM = "You are marco."
GREEDY = {"temperature": 0}
SHORT: Any = {"model": "demo", "max_tokens": 40, "extra_body": GREEDY}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(demo: Stack) -> Stack:
    return demo


async def counted(demo: Stack) -> list[float]:
    """Tokens of prompts, those of them from memory, and those that were generated, of all turns so far."""
    names = ("prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total")
    return [await demo.metric("worker", f"agentmem_{name}") for name in names]


@dataclass
class Chat:
    """A conversation as a client has it: it sends all of it each time, and never says who it is."""

    claude: anthropic.AsyncAnthropic
    demo: Stack
    messages: list[Any] = field(default_factory=list)
    agent: str = ""

    async def say(self, text: str, *, streamed: bool = False, **more: Any) -> anthropic.types.Message:
        """One turn, whose usage is what the worker counted."""
        self.messages.append({"role": "user", "content": text})
        remembered = len((await self.demo.ledger(self.agent)).token_ids) if self.agent else 0
        before = await counted(self.demo)
        asked = {**SHORT, "system": SYSTEM, "messages": self.messages, **more}
        if streamed:
            async with self.claude.messages.stream(**asked) as stream:
                events: list[Any] = [event async for event in stream]
                answer = await stream.get_final_message()
            begun, ended = events[0].message.usage.to_dict(), answer.usage.to_dict()
            assert {**begun, "output_tokens": ended["output_tokens"]} == ended, "known when it begins"
            (report,) = [event.model_extra["agentmem"] for event in events if event.type == "message_delta"]
        else:
            answer = await self.claude.messages.create(**asked)
            report = (answer.model_extra or {})["agentmem"]
        self.messages.append({"role": "assistant", "content": answer.content})
        told = answer.usage
        prompt, cached, said = (now - at for now, at in zip(await counted(self.demo), before, strict=True))
        assert told.cache_read_input_tokens == cached == remembered
        assert told.cache_creation_input_tokens == prompt - cached
        assert (told.input_tokens, told.output_tokens) == (0, said)
        assert self.agent in ("", report["agent_id"]), "the conversation has found its agent"
        self.agent = report["agent_id"]
        return answer


@pytest.mark.slow
async def test_a_chat_is_remembered_without_any_header(demo: Stack, claude: anthropic.AsyncAnthropic) -> None:
    chat = Chat(claude, demo)
    first = await chat.say("The colour of the boat is green.")
    assert first.stop_reason == "end_turn"
    assert first.usage.cache_read_input_tokens == 0
    second = await chat.say("The key is in the cellar.", streamed=True)
    third = await chat.say("What is the colour of the boat?")
    assert getattr(third.content[0], "text", "") == "The colour of the boat is green."
    reads = [answer.usage.cache_read_input_tokens or 0 for answer in (first, second, third)]
    assert reads == sorted(set(reads)), "more each time"

    counted = await claude.messages.count_tokens(model="demo", system=SYSTEM, messages=chat.messages[:-1])
    told = third.usage
    parts = (told.input_tokens, told.cache_read_input_tokens or 0, told.cache_creation_input_tokens or 0)
    assert sum(parts) == counted.input_tokens


async def test_models(demo: Stack, claude: anthropic.AsyncAnthropic) -> None:
    assert [model.id async for model in claude.models.list()] == ["demo"]
    assert (await claude.models.retrieve("demo")).max_input_tokens == 8192
