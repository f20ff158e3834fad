from __future__ import annotations

import asyncio
from typing import Any

import httpx

from agentmem.v1 import types_pb2
from tests.system.stack import Stack

PROMPT = "An overseen agent. " + "The colour of the boat is green. " * 40


async def told(http: httpx.AsyncClient) -> Any:
    return (await http.get("/v1/overview")).raise_for_status().json()


def of_model(overview: Any) -> Any:
    [found] = [model for model in overview["models"] if model["loaded"]]
    return found


def ended(overview: Any) -> int:
    return int(sum(of_model(overview)["turns"].values()))


async def test_what_two_turns_change(stack: Stack) -> None:
    await stack.renew("gateway")
    client = await stack.client("gateway")
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as http:
        before = await told(http)
        settings: Any = {"max_tokens": 4, "sampling": types_pb2.Sampling(ignore_eos=True)}
        first = await client.turn("overseen", prompt=PROMPT, **settings)
        second = await client.turn("overseen", append=types_pb2.Append(text="And now?"), **settings)
        async with asyncio.timeout(60):
            while ended(after := await told(http)) < ended(before) + 2:
                await asyncio.sleep(0.1)
        await http.delete("/v1/agents/overseen?all_models=true")
    assert [one["service"] for one in after["processes"]] == ["gateway", "worker", "store"]
    assert {(one["state"], one["why"]) for one in after["processes"]} == {("up", None)}
    assert all(one["memory_bytes"] > 0 and one["start_time_seconds"] > 0 for one in after["processes"])
    assert {*after["processes"][1]["requests"]} >= {"OK"}
    old, new = of_model(before), of_model(after)
    grown = {tier: n - old["prompt_tokens"].get(tier, 0) for tier, n in new["prompt_tokens"].items()}
    assert grown["hot"] == second.cached["hot"] > 0
    prompts = first.finished.usage.prompt_tokens + second.finished.usage.prompt_tokens
    assert grown["computed"] == prompts - second.cached["hot"]
    assert new["generated_tokens"] - old["generated_tokens"] == 8
    firsts = [each["time_to_first_token_since_start"] for each in (before, after)]
    for tier in ("none", "hot"):
        assert firsts[1][tier]["count"] - firsts[0].get(tier, {"count": 0})["count"] == 1
    assert sum(new["pool_blocks"].values()) > 0
    assert after["disk"]["limit_bytes"] > 0
