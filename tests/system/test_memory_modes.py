"""Memory modes of named agents, by OpenAI's and Anthropic's SDKs and gRPC, with the demo model."""

from __future__ import annotations

import itertools
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from tests.system.stack import Stack

FACT = "The colour of the boat is green."
OTHER = "The number of the locker is 417."
QUESTION = "What is the colour of the boat?"
ANSWER = "The colour of the boat is green."
SYSTEM = "You are marco."
ASKED: Any = {"model": "demo", "temperature": 0, "max_tokens": 20}
NAMES = (f"agent-{number}" for number in itertools.count())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(demo: Stack) -> Stack:
    return demo


pytestmark = pytest.mark.asyncio(loop_scope="module")


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def system(text: str = SYSTEM) -> Any:
    return {"role": "system", "content": text}


def assistant(text: str) -> Any:
    return {"role": "assistant", "content": text}


class Told:
    """An answer: its text, what it says of the memory, and the warning in its headers."""

    def __init__(self, text: str | None, report: dict[str, Any], warning: str | None) -> None:
        self.text, self.report, self.warning = text or "", report, warning


class Named:
    def __init__(self, sdk: openai.AsyncOpenAI, *, stream: bool = False) -> None:
        self.sdk, self.agent, self.stream = sdk, next(NAMES), stream

    async def ask(self, *messages: Any, mode: str = "", key: str = "", **fields: Any) -> Told:
        headers = {"X-Agent-ID": self.agent, "X-Agent-Memory": mode, "Idempotency-Key": key}
        create = self.sdk.chat.completions.with_raw_response.create
        sent: Any = {"messages": messages, "extra_headers": {name: text for name, text in headers.items() if text}}
        raw = await create(**{**ASKED, **fields, **sent, "stream": self.stream})
        warning = raw.headers.get("x-agent-warning")
        if not self.stream:
            whole: Any = raw.parse()
            return Told(whole.choices[0].message.content, whole.model_extra["agentmem"], warning)
        text, report = "", {}
        async for chunk in raw.parse():  # type: ignore[attr-defined]
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            report = (chunk.model_extra or {}).get("agentmem", report)
        return Told(text, report, warning)


async def memory(demo: Stack, agent: str) -> str:
    return (await demo.ledger(agent)).text.decode()


@pytest.mark.parametrize("stream", [False, True])
async def test_only_the_newest_message_each_time(demo: Stack, sdk: openai.AsyncOpenAI, stream: bool) -> None:
    named = Named(sdk, stream=stream)
    told = [await named.ask(user(text)) for text in (FACT, "Where is the key?", QUESTION)]
    assert told[-1].text == ANSWER
    assert [each.report["match"] for each in told] == ["new", "extend", "extend"]
    assert [each.report["appended"] for each in told] == [False, True, True]
    assert not any(each.warning or each.report["warning"] for each in told)
    client = await demo.client("gateway")
    agent = await client.agent(named.agent)
    assert (agent.turns, await client.snapshots(named.agent)) == (3, [])
    text = await memory(demo, named.agent)
    assert text.count(FACT) == text.count(QUESTION) + 1 == 2, "each once, and the model's answer"


async def test_another_system_message_is_never_lost(demo: Stack, sdk: openai.AsyncOpenAI) -> None:
    named = Named(sdk)
    await named.ask(system(), user(FACT))
    before = await memory(demo, named.agent)
    for other in ("You are", f"{SYSTEM} And kind.", "You are lena."):
        with pytest.raises(openai.BadRequestError, match="X-Agent-Memory: append") as refused:
            await named.ask(system(other), user(QUESTION))
        assert refused.value.code == "failed_precondition"
    assert await memory(demo, named.agent) == before
    told = await named.ask(system("You are lena."), user(QUESTION), mode="append")
    assert (told.text, told.report["match"]) == (ANSWER, "extend")
    assert (await memory(demo, named.agent)).startswith(before)
    assert "You are lena." in await memory(demo, named.agent)


@pytest.mark.slow
async def test_a_conversation_that_shares_nothing_is_refused(demo: Stack, sdk: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        named = Named(sdk, stream=stream)
        await named.ask(system(), user(FACT))
        before = await memory(demo, named.agent)
        other = [system(), user(OTHER), assistant("Noted."), user("Where is the key?")]
        with pytest.raises(openai.BadRequestError, match=r"X-Agent-Memory: append.* replace"):
            await named.ask(*other)
        assert await memory(demo, named.agent) == before
        told = await named.ask(*other, mode="replace")
        assert FACT not in await memory(demo, named.agent)
        kept = (await (await demo.client("gateway")).snapshots(named.agent))[0].name
        for warning in (told.warning, told.report["warning"]):
            assert warning is not None and kept in warning
        assert told.report["dropped_tokens"] > 0


async def test_what_is_left_behind_warns_and_stays_in_a_snapshot(demo: Stack, sdk: openai.AsyncOpenAI) -> None:
    named, client = Named(sdk), await demo.client("gateway")
    noted = await named.ask(user(FACT))
    await named.ask(user("Where is the key?"))
    told = await named.ask(user(FACT), assistant(noted.text), user(QUESTION))
    assert told.text == ANSWER
    assert [each.name for each in await client.snapshots(named.agent)] == ["auto-2"]
    assert told.warning == told.report["warning"] and "auto-2" in str(told.warning)
    await client.restore(named.agent, "auto-2")
    assert "Where is the key?" in await memory(demo, named.agent)


async def test_a_retry_is_replayed_in_any_mode_and_not_appended_again(demo: Stack, sdk: openai.AsyncOpenAI) -> None:
    named = Named(sdk)
    await named.ask(user(FACT))
    first = await named.ask(user(QUESTION), key="once")
    before = await memory(demo, named.agent)
    for mode in ("", "append", "refuse"):
        again = await named.ask(user(QUESTION), key="once", mode=mode)
        assert (again.text, again.report["replayed"]) == (first.text, True)
    assert await memory(demo, named.agent) == before


async def test_what_was_appended_is_no_conversation_of_its_own(sdk: openai.AsyncOpenAI) -> None:
    """A request with only that conversation gets no fork of the rest."""
    named = Named(sdk)
    question = "Where is the boat, and what is its colour?"
    await named.ask(user(FACT))
    told = await named.ask(user(question))
    messages = [user(question), assistant(told.text), user("Where is the key?")]
    answer: Any = await sdk.chat.completions.create(**ASKED, messages=messages)
    assert answer.model_extra["agentmem"]["match"] == "new"


@pytest.mark.slow
async def test_the_other_endpoints(demo: Stack, sdk: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic) -> None:
    for stream in (False, True):
        agent = next(NAMES)
        headers = {"X-Agent-ID": agent}
        more: Any = {"extra_body": {"temperature": 0}, "extra_headers": headers, "max_tokens": 20, "model": "demo"}
        await claude.messages.create(messages=[user(FACT)], system=SYSTEM, **more)
        if stream:
            async with claude.messages.stream(messages=[user(QUESTION)], system=SYSTEM, **more) as streamed:
                message = await streamed.get_final_message()
        else:
            message = await claude.messages.create(messages=[user(QUESTION)], system=SYSTEM, **more)
        assert getattr(message.content[0], "text", "") == ANSWER
        again: Any = {"model": "demo", "temperature": 0, "extra_headers": headers, "stream": stream}
        answer = await sdk.responses.create(input=QUESTION, instructions=SYSTEM, **again)
        if stream:
            answer = [event async for event in answer][-1].response
        assert answer.output_text == ANSWER
        text = await memory(demo, agent)
        assert (text.count(QUESTION), text.count(SYSTEM)) == (2, 1)
