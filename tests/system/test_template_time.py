"""Dates in templates: what an agent remembers does not depend on the day that it is asked."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference_service.text import template
from tests.system.client import chat
from tests.system.shared import of_module
from tests.system.stack import Stack
from tests.system.test_changed_models import Running, stack, working  # noqa: F401 - a fixture
from tests.tiny_models import CHATML, write_llama

DATED = "Today is {{ strftime_now('%A, %d %B %Y') }}.\n" + CHATML
FACTS = "The colour of the boat is green, and the house by the sea is red. " * 10
MONDAY, TUESDAY = "2026-03-02T09:30:00+01:00", "2026-03-03T09:30:00+01:00"


async def shown(worker: Running, agent: str) -> str:
    return (await worker.client.agent(agent)).template_time


async def test_the_next_day_computes_only_what_is_new(
    stack: Stack,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = write_llama(tmp_path / "m", template=DATED)
    said = [("user", FACTS), ("assistant", "It is green.")]
    monkeypatch.setattr(template, "present_moment", lambda: MONDAY)
    async with working(stack, directory) as worker:
        first = await worker.client.prefill("dated", messages=chat(*said), request_id="first")
        assert await shown(worker, "dated") == MONDAY
    monkeypatch.setattr(template, "present_moment", lambda: TUESDAY)
    async with working(stack, directory) as worker:
        ledger = await stack.ledger("dated")
        assert ledger.text.startswith(b"Today is Monday, 02 March 2026.")
        conversation = chat(*said, ("user", "And now?"))
        second = await worker.held("dated", messages=conversation)
        assert (second.match, second.cached) == ("EXTEND", {"warm": len(ledger.token_ids)})
        assert await shown(worker, "dated") == MONDAY

        again = await worker.client.prefill("dated", messages=chat(*said), request_id="first")
        assert again.finished.replayed and again.finished.version == first.finished.version

        # A fork keeps it, a new agent has the new day, and who asks for the new day gets it.
        await worker.client.fork("dated", "fork")
        assert await shown(worker, "fork") == MONDAY
        await worker.client.turn("new", messages=chat(*said, ("user", "And now?")), max_tokens=1)
        assert (await stack.ledger("new")).text.startswith(b"Today is Tuesday, 03 March 2026.")
        moved = await worker.client.turn("dated", messages=conversation, template_time=TUESDAY, max_tokens=1)
        assert moved.match == "DIVERGE", "all behind the date is another text"
        assert (await stack.ledger("dated")).text.startswith(b"Today is Tuesday")
        assert (await shown(worker, "dated"), await shown(worker, "fork")) == (TUESDAY, MONDAY)


TIMED = "It is {{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}.\n" + CHATML
"""The clock goes on between any two renderings."""
timed = of_module("tiny", partial(write_llama, template=TIMED))


@pytest.mark.asyncio(loop_scope="module")
async def test_agents_found_by_content_keep_theirs(timed: Stack) -> None:
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
