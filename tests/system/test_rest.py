"""REST against a real stack: the whole life of an agent without a line of gRPC."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from itertools import accumulate
from typing import Any
from urllib.parse import quote

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

    await branches(a, Agent(http, "fork"), before)
    await tiers(http, a)

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
    assert [agent["key"]["agent_id"] for agent in listed] == ["a", "fork", "moved/ä"]
    for agent in (a, Agent(http, "fork"), moved):
        assert (await agent.call("DELETE", params={"all_models": "true"}))["deleted"] == 1
        assert (await agent.answer("DELETE")).status_code == 404
        assert (await agent.call("DELETE", params={"model": "tiny", "allow_missing": "true"}))["deleted"] == 0
    assert (await http.get("/v1/agents")).json() == {"agents": [], "next_page_token": ""}


async def branches(a: Agent, fork: Agent, before: Any) -> None:
    """Snapshots, forks, trims: each does what it says."""
    made = await a.call("POST", "/snapshots", {"name": "ä/1"})
    assert made["snapshot"]["tokens"] == before["tokens"]
    assert (await fork.answer("GET")).status_code == 404
    forked = await a.call("POST", "/fork", {"new_agent_id": "fork", "keep_tokens": 20})
    assert (forked["agent"]["tokens"], forked["agent"]["version"]["version"]) == (20, 1)
    assert (await a.answer("POST", "/fork", {"new_agent_id": "fork"})).status_code == 409
    trimmed = await a.call("POST", "/trim", {"keep_tokens": 10})
    assert trimmed["agent"]["tokens"] == 10
    names = [one["name"] for one in (await a.call("GET", "/snapshots"))["snapshots"]]
    assert names == [f"auto-{before['version']['version']}", "ä/1"]
    page = await a.call("GET", "/snapshots", params={"model": "tiny", "page_size": "1"})
    assert len(page["snapshots"]) == 1
    assert page["next_page_token"]
    named = f"/snapshots/{quote('ä/1', safe='')}"
    restored = await a.call("POST", f"{named}/restore", {})
    assert restored["agent"]["tokens"] == before["tokens"]
    assert restored["agent"]["version"]["version"] == before["version"]["version"] + 2
    assert await a.call("DELETE", named) == {}
    assert (await a.answer("DELETE", named)).status_code == 404


async def tiers(http: httpx.AsyncClient, a: Agent) -> None:
    assert (await a.call("PUT", "/pin", {"pinned": True}))["agent"]["pinned"]
    assert not (await a.call("PUT", "/pin", {"pinned": False}))["agent"]["pinned"]
    times = (await a.call("PUT", "/ttl", {"ttl": 3600.5}))["agent"]
    assert (times["ttl"], times["delete_after"]) == (3600.5, None)
    assert (await a.call("PUT", "/ttl", {}))["agent"]["ttl"] is None
    hints = [{"key": {"agent_id": "a", "model_id": "tiny"}, "steps": 2}]
    assert (await http.put("/v1/turn-hints", json={"hints": hints})).json() == {}
    assert (await http.post("/v1/generations/abort", json={"request_id": "nobody"})).json() == {"aborted": False}
    agent = await a.on_disk()
    await a.call("POST", "/evict", {"tier": "hot"})
    assert await blocks(a, agent["tokens"]) == {"warm"}
    probe = {"append": {"text": "x"}}
    assert (await a.call("POST", "/probe", probe))["cache"]["cached"] == {"warm": agent["tokens"]}
    assert (await a.call("POST", "/prefetch", {}))["tokens"] == agent["tokens"]
    assert (await a.call("POST", "/probe", probe))["cache"]["cached"] == {"hot": agent["tokens"]}
    assert await blocks(a, agent["tokens"]) == {"hot"}
    await a.call("POST", "/evict", {"tier": "warm"})
    assert await blocks(a, agent["tokens"]) == {"none"}
    turned = await a.say("Is it all there?")
    assert turned["started"]["cache"]["cached"] == {}
    *_, last = (await a.call("GET", "/turns"))["turns"]
    assert (last["report"]["cache"], last["report"]["usage"]) == (
        turned["started"]["cache"],
        turned["finished"]["usage"],
    )
    assert (last["report"]["timings"], last["report"]["reason"]) == (turned["finished"]["timings"], "length")
    assert last["report"]["cache"]["miss_reason"] == "evicted"


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
