"""Arguments of the chat template, by every door: they reach the template, and are a part of what is matched."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.scripted_model import TEMPLATE, write_scripted
from tests.system.stack import Stack, hosting

pytestmark = pytest.mark.asyncio(loop_scope="module")

Messages = list[dict[str, str]]
THINKS = "<|im_start|>system\nThinks: {{ enable_thinking }}<|im_end|>\n{% if tools %}"
ASKED = [{"role": "user", "content": "What is the colour of the boat, and of the house by the sea?"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    template = TEMPLATE.replace("{% if tools %}", THINKS, 1)
    directory = write_scripted(tmp_path_factory.mktemp("arguments") / "m", special_markers=True, template=template)
    async with hosting(f"scripted={directory}", "store", "worker", "gateway") as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
        yield client


def _openai(said: Messages, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"model": "scripted", "messages": said, "chat_template_kwargs": arguments}


def _response(said: Messages, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"model": "scripted", "input": said, "chat_template_kwargs": arguments}


def _anthropic(said: Messages, arguments: dict[str, Any]) -> dict[str, Any]:
    return {**_openai(said, arguments), "max_tokens": 64}


def _rest(said: Messages, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"messages": {"messages": said, "template_arguments_json": json.dumps(arguments)}}


DOORS: dict[str, tuple[str, Callable[..., dict[str, Any]], str, Callable[[Any], str]]] = {
    "chat": ("/v1/chat/completions", _openai, "chat_template_kwargs", lambda a: a["choices"][0]["message"]["content"]),
    "responses": ("/v1/responses", _response, "chat_template_kwargs", lambda a: a["output"][0]["content"][0]["text"]),
    "messages": ("/v1/messages", _anthropic, "chat_template_kwargs", lambda a: a["content"][0]["text"]),
    "rest": ("/v1/agents/{}/generate?model=scripted", _rest, "messages.template_arguments_json", lambda a: a["text"]),
}
"""Where to send a turn, its body, the name of the arguments there, and the answer's text."""


@pytest.mark.parametrize("door", DOORS)
async def test_they_are_a_part_of_what_is_matched(http: httpx.AsyncClient, stack: Stack, door: str) -> None:
    path, body, _, text = DOORS[door]
    agent = f"by-{door}"

    async def turn(said: Messages, **arguments: Any) -> tuple[dict[str, Any], str]:
        answer = await http.post(path.format(agent), json=body(said, arguments), headers=sent)
        assert answer.status_code == 200, answer.text
        report = answer.json().get("agentmem") or answer.json()["started"]["cache"]
        return report, text(answer.json())

    sent = {} if door == "rest" else {"x-agent-id": agent}
    _, answered = await turn(ASKED, enable_thinking=False)
    assert b"Thinks: False" in (before := (await stack.ledger(agent)).text)
    said = [*ASKED, {"role": "assistant", "content": answered}, {"role": "user", "content": "And now?"}]
    same, answered = await turn(said, enable_thinking=False)
    assert (same["match"], same["miss_reason"]) == ("extend", None)
    assert (await stack.ledger(agent)).text.startswith(before)
    said += [{"role": "assistant", "content": answered}, {"role": "user", "content": "Who told you?"}]
    if door != "rest":  # By REST a chat replaces the memory unless it says otherwise.
        refused = await http.post(path, json=body(said, {"enable_thinking": True}), headers=sent)
        assert refused.status_code == 400 and "would leave all of it behind" in refused.text
        sent["x-agent-memory"] = "replace"
    other, _ = await turn(said, enable_thinking=True)
    assert (other["match"], other["miss_reason"]) in (("partial", "diverged"), ("diverge", "below_min"))
    after = (await stack.ledger(agent)).text
    assert b"Thinks: True" in after and b"Thinks: False" not in after
