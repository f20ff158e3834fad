"""REST against a real stack: the whole life of an agent without a line of gRPC."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from itertools import accumulate
from typing import Any

import httpx
import pytest

from tests.system.shared import of_module
from tests.system.stack import Stack
from tests.tiny_models import write_llama

FILE = {"content-type": "application/octet-stream"}
TOLD = "The colour of the boat is green. " * 30


stack = of_module("tiny", write_llama, "--default-max-tokens", "8")


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=120) as client:
        yield client


class Agent:
    def __init__(self, http: httpx.AsyncClient, name: str) -> None:
        self._http = http
        self._url = f"/v1/agents/{''.join(f'%{byte:02x}' for byte in name.encode())}"

    async def call(self, method: str, path: str = "", body: Any = None, **sent: Any) -> Any:
        answer = await self.answer(method, path, body, **sent)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.headers["content-type"] == "application/json" else answer.content

    async def answer(self, method: str, path: str = "", body: Any = None, **sent: Any) -> httpx.Response:
        return await self._http.request(method, self._url + path, **{"params": {"model": "tiny"}, "json": body, **sent})

    async def say(self, text: str, **arguments: Any) -> Any:
        body = {"append": {"text": text}, "max_tokens": 8, "sampling": {"ignore_eos": True}, **arguments}
        return await self.call("POST", "/generate", body, headers=arguments.pop("headers", {}))

    async def on_disk(self) -> Any:
        async with asyncio.timeout(60):
            while True:
                agent = (await self.call("GET"))["agent"]
                if agent["warm_tokens"] == agent["tokens"]:
                    return agent
                await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_the_whole_life_of_an_agent(http: httpx.AsyncClient) -> None:
    a = Agent(http, "a")
    assert (await a.answer("GET")).status_code == 404
    assert (await a.call("POST", "/probe", {"prompt": TOLD}))["cache"]["match"] == "new"

    first = await a.say(TOLD, if_version=0)
    assert (first["started"]["cache"]["match"], len(first["token_ids"])) == ("new", 8)
    assert first["finished"]["durable"]
    assert first["finished"]["reason"] == "length"
    assert (await a.answer("POST", "/generate", {"append": {"text": "x"}, "if_version": 0})).status_code == 409

    turn = {"append": {"text": "Who told you?"}, "max_tokens": 4, "top_logprobs": 1, "stream": True}
    key = {"idempotency-key": "turn-2"}
    streamed = (await a.call("POST", "/generate", turn, headers=key)).decode()
    events = [block.split("\n") for block in streamed.removesuffix("\n\n").split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in events]
    said = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert names[0] == "started"
    assert names[-1] == "finished"
    assert set(names[1:-1]) == {"delta"}
    assert said[0]["cache"]["match"] == "extend"
    assert said[0]["cache"]["cached"] == {"hot": first["finished"]["usage"]["prompt_tokens"] + 8}
    tokens = [token for delta in said[1:-1] for token in delta["token_ids"]]
    again = await a.call("POST", "/generate", {**turn, "stream": False}, headers=key)
    assert again["finished"]["replayed"]
    assert again["token_ids"] == tokens
    assert (await a.answer("POST", "/generate", {**turn, "max_tokens": 5}, headers=key)).status_code == 400

    prefilled = await a.call("POST", "/prefill", {"append": {"text": "It was Lena."}})
    assert prefilled["finished"]["reason"] == "prefilled"
    before = await a.on_disk()
    assert (before["turns"], before["tier"], before["key"]) == (3, "hot", {"agent_id": "a", "model_id": "tiny"})
    assert await blocks(a, before["tokens"]) == {"hot"}

    file = await a.call("GET", "/export")
    moved = Agent(http, "moved/ä")
    made = await moved.call("POST", "/import", params={"model": "tiny"}, content=file, headers=FILE, json=None)
    assert made["agent"]["key"] == {"agent_id": "moved/ä", "model_id": "tiny"}
    assert (await moved.answer("POST", "/import", content=file, headers=FILE)).status_code == 409
    assert (await Agent(http, "c").answer("POST", "/import", content=file[:-1], headers=FILE)).status_code == 422
    assert (await a.call("DELETE"))["deleted"] == 1
    back = await a.call("POST", "/import", content=await moved.call("GET", "/export"), headers=FILE)
    assert back["agent"]["tokens"] == made["agent"]["tokens"]
    assert await a.call("GET", "/export") == file, "from here to there and back, to the last byte"
    warm = await moved.say("And now?")
    assert warm["started"]["cache"]["cached"] == {"warm": made["agent"]["tokens"]}

    listed = (await http.get("/v1/agents", params={"model": "tiny"})).json()["agents"]
    assert [agent["key"]["agent_id"] for agent in listed] == ["a", "moved/ä"]
    for agent in (a, moved):
        assert (await agent.call("DELETE", params={"all_models": "true"}))["deleted"] == 1
        assert (await agent.answer("DELETE")).status_code == 404
        assert (await agent.call("DELETE", params={"model": "tiny", "allow_missing": "true"}))["deleted"] == 0
    assert (await http.get("/v1/agents")).json() == {"agents": [], "next_page_token": ""}


async def blocks(a: Agent, tokens: int) -> set[str]:
    """The tiers that its KV is in, by the blocks, which must be of all of its text."""
    listed = await a.call("GET", "/blocks")
    turns = (await a.call("GET", "/turns", params={"model": "tiny", "include_text": "true"}))["turns"]
    text = b"".join(base64.b64decode(turn["text"]) for turn in turns)
    found = listed["blocks"]
    assert listed["tokens"] == sum(block["tokens"] for block in found) == tokens
    assert [block["first_token"] for block in found] == list(range(0, tokens, 256))
    assert [block["first_byte"] for block in found] == [0, *accumulate(block["bytes"] for block in found[:-1])]
    assert found[-1]["first_byte"] + found[-1]["bytes"] == len(text)
    return {block["tier"] for block in found}


@pytest.mark.parametrize("name", ["a/b", "..", "%2F", "ä 😀\u202e", "a?b#c&d=e;", "\x00", "x" * 256, " "])
async def test_odd_names(http: httpx.AsyncClient, name: str) -> None:
    agent = Agent(http, name)
    assert (await agent.say("Hello"))["finished"]["version"]["version"] == 1
    assert (await agent.call("GET"))["agent"]["key"] == {"agent_id": name, "model_id": "tiny"}
    found = (await http.get("/v1/agents", params={"agent": name})).json()["agents"]
    assert [one["key"]["agent_id"] for one in found] == [name]
    assert (await agent.call("DELETE"))["deleted"] == 1
