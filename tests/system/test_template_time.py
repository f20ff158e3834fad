"""Dates in templates: what an agent remembers does not depend on the day that it is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from agentmem.v1 import agent_pb2, inference_pb2
from inference_service.text import template
from tests.system.stack import Stack, chat, hosting
from tests.system.test_changed_models import Running, stack, working  # noqa: F401 - a fixture
from tests.tiny_models import CHATML, write_llama

DATED = "Today is {{ strftime_now('%A, %d %B %Y') }}.\n" + CHATML
FACTS = "The colour of the boat is green, and the house by the sea is red. " * 10
MONDAY, TUESDAY = "2026-03-02T09:30:00+01:00", "2026-03-03T09:30:00+01:00"


async def shown(worker: Running, agent: str) -> str:
    request = agent_pb2.GetAgentRequest(key=worker.client.key(agent))
    return str((await worker.client.agents.GetAgent(request, timeout=10)).agent.template_time)


async def test_the_next_day_computes_only_what_is_new(
    stack: Stack,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = write_llama(tmp_path / "m", template=DATED)
    said = [("user", FACTS), ("assistant", "It is green.")]
    monkeypatch.setattr(template, "present_moment", lambda: MONDAY)
    async with working(stack, directory) as worker:
        told = inference_pb2.PrefillRequest(key=worker.client.key("dated"), messages=chat(*said), request_id="first")
        first = await worker.client.inference.Prefill(told, timeout=60)
        assert await shown(worker, "dated") == MONDAY
    monkeypatch.setattr(template, "present_moment", lambda: TUESDAY)
    async with working(stack, directory) as worker:
        ledger = await stack.ledger("dated")
        assert ledger.text.startswith(b"Today is Monday, 02 March 2026.")
        conversation = chat(*said, ("user", "And now?"))
        second = await worker.held("dated", messages=conversation)
        assert (second.match, second.cached) == ("EXTEND", {"warm": len(ledger.token_ids)})
        assert await shown(worker, "dated") == MONDAY

        again = await worker.client.inference.Prefill(told, timeout=60)
        assert again.finished.replayed and again.finished.version == first.finished.version

        # A fork keeps it, a new agent has the new day, and who asks for the new day gets it.
        fork = agent_pb2.ForkAgentRequest(key=worker.client.key("dated"), new_agent_id="fork")
        await worker.client.agents.ForkAgent(fork, timeout=10)
        assert await shown(worker, "fork") == MONDAY
        await worker.client.turn("new", messages=chat(*said, ("user", "And now?")), max_tokens=1)
        assert (await stack.ledger("new")).text.startswith(b"Today is Tuesday, 03 March 2026.")
        moved = await worker.client.turn("dated", messages=conversation, template_time=TUESDAY, max_tokens=1)
        assert moved.match == "DIVERGE", "all behind the date is another text"
        assert (await stack.ledger("dated")).text.startswith(b"Today is Tuesday")
        assert (await shown(worker, "dated"), await shown(worker, "fork")) == (TUESDAY, MONDAY)


# The whole stack, whose clock goes on between any two renderings.

TIMED = "It is {{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}.\n" + CHATML


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def timed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory = write_llama(tmp_path_factory.mktemp("timed"), template=TIMED)
    async with hosting(f"tiny={directory}", "store", "worker", "gateway") as started:
        yield started


class Conversation:
    """A client that sends its whole conversation each time and names no agent."""

    def __init__(self, timed: Stack) -> None:
        self.url = f"{timed.url}/v1/chat/completions"
        self.messages = [{"role": "user", "content": FACTS}]

    async def say(self, text: str = "", **headers: str) -> Any:
        self.messages += [{"role": "user", "content": text}] if text else []
        body = {"model": "tiny", "messages": self.messages, "temperature": 0, "max_tokens": 8}
        async with httpx.AsyncClient(timeout=60) as http:
            response = await http.post(self.url, json=body, headers=headers)
        answer = response.json()
        if response.status_code == 200:
            self.messages.append(answer["choices"][0]["message"])
        return answer


@pytest.mark.asyncio(loop_scope="module")
async def test_agents_found_by_content_keep_theirs(timed: Stack) -> None:
    conversation = Conversation(timed)
    first = await conversation.say()
    second = await conversation.say("And now?")
    assert second["agentmem"]["agent_id"] == first["agentmem"]["agent_id"]
    reused = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused >= first["usage"]["prompt_tokens"]
    client = await timed.client("gateway")
    kept = (await client.agent(first["agentmem"]["agent_id"])).template_time
    assert kept

    moved = await conversation.say("And now?", **{"X-Agent-Template-Time": "1987-03-05T21:45:07"})
    assert moved["usage"]["prompt_tokens_details"]["cached_tokens"] < 16
    assert (await client.agent(first["agentmem"]["agent_id"])).template_time == "1987-03-05T21:45:07"
    refused = await conversation.say("And now?", **{"X-Agent-Template-Time": "tomorrow"})
    assert refused["error"]["param"] == "X-Agent-Template-Time"
