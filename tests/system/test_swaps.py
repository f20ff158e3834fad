"""Agents on several models: what each remembers comes back with its model, and each model is the one that answers."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest

from agentmem.v1 import model_pb2, types_pb2
from tests.full_matrix import FULL
from tests.system.client import Client, refused
from tests.system.recomputed import TOLERANCE
from tests.system.several import ARGUMENTS, Several, of_models
from tests.tiny_models import write_gemma3, write_llama

LINES = ["The colour of the boat is green. " * 25, "Who told you that?", "And the house by the sea?"]


def models(root: Path) -> dict[str, Path]:
    """Two models of one geometry, and a hybrid; one of them is loaded at a time."""
    return {"a": write_llama(root / "a"), "b": write_llama(root / "b", seed=1), "c": write_gemma3(root / "c", seed=2)}


several = of_models(models)


class Elsewhere(Client):
    """A client of another namespace, which shares no KV."""

    def key(self, agent: str) -> types_pb2.AgentKey:
        return types_pb2.AgentKey(namespace="elsewhere", agent_id=agent, model_id=self.model)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["a", "c"], ids=["full attention", "hybrid"])
async def test_a_model_that_comes_back_finds_its_agents_warm(several: Several, model: str) -> None:
    address = f"unix:{several.stack.run}/worker.sock"
    elsewhere = Elsewhere(address, model)
    never = [await elsewhere.say("agent", line, **ARGUMENTS) for line in LINES]
    await elsewhere.close()

    agent = f"{model} and b"
    there, other = await several.on(model), await several.on("b")
    turns = [await there.say(agent, LINES[0], **ARGUMENTS)]
    on_b = [await other.say(agent, LINES[0], **ARGUMENTS)]
    for line in LINES[1:]:
        before = len((await several.stack.ledger(agent, model)).token_ids)
        turns.append(await there.say(agent, line, **ARGUMENTS))
        assert (turns[-1].match, turns[-1].miss, turns[-1].cached) == ("EXTEND", "UNSPECIFIED", {"warm": before})
        on_b.append(await other.say(agent, line, **ARGUMENTS))
        assert list(on_b[-1].cached) == ["warm"]
    for swapped, hot in zip(turns, never, strict=True):
        assert swapped.token_ids == hot.token_ids
        assert np.abs(np.array(swapped.logprobs) - np.array(hot.logprobs)).max() < TOLERANCE
    assert turns[0].token_ids != on_b[0].token_ids
    assert await several.difference(agent, "b", on_b[-1]) < TOLERANCE
    assert await several.difference(agent, "b", on_b[-1], several.directories["a"]) > 100 * TOLERANCE
    assert (await there.agent(agent)).version.version == (await other.agent(agent)).version.version == len(LINES)
    both = [await several.stack.ledger(agent, name) for name in (model, "b")]
    assert both[0].text != both[1].text, "two memories"


@pytest.mark.slow
async def test_a_model_leaves_while_the_store_is_down_and_the_ledger_has_its_agents(several: Several) -> None:
    stack, a = several.stack, await several.on("a")
    for number, line in enumerate(LINES[:2]):
        said = await a.say("homeless", line, **ARGUMENTS)
        stack.kill("store")
        assert [told.stage for told in await several.load("b")][-1] == "ready"
        await refused(a.say("homeless", "Anybody?", **ARGUMENTS), grpc.StatusCode.UNAVAILABLE)
        await stack.renew()
        assert said.finished.version.version == (await a.agent("homeless")).version.version == number + 1
    turn = await a.say("homeless", LINES[2], **ARGUMENTS)
    assert turn.match == "EXTEND"
    assert await several.difference("homeless", "a", turn) < TOLERANCE


@pytest.mark.slow
async def test_a_worker_that_is_killed_in_the_middle_of_a_swap_loses_nothing(several: Several) -> None:
    """At several moments of it: while the old model drains and is written, and while the new one is loaded."""
    stack = several.stack
    for number, stage in enumerate(["wait", "read", "measure", "prove", "pool"] if FULL else ["wait", "prove"]):
        client, agent = await several.on("a"), f"survivor {number}"
        told = [await client.say(agent, line, **ARGUMENTS) for line in LINES[:2]]
        await _killed_at(several, stage)
        await stack.renew()
        assert await several.loaded() == ["a"]
        client = await several.on("a")
        ledger = await stack.ledger(agent, "a")
        ends = [(place.end_token - place.generated_tokens, place.end_token) for place in ledger.turns]
        assert [list(ledger.token_ids[start:end]) for start, end in ends] == [turn.token_ids for turn in told]
        assert await several.difference(agent, "a", await client.say(agent, LINES[2], **ARGUMENTS)) < TOLERANCE
        on_b = await (await several.on("b")).say(agent, LINES[0], **ARGUMENTS)
        assert await several.difference(agent, "b", on_b) < TOLERANCE


async def _killed_at(several: Several, stage: str) -> None:
    client = await several.on("b")
    loading = client.models.LoadModel(model_pb2.LoadModelRequest(model_id="b"), timeout=60)
    while (await loading.read()).stage != stage:
        pass
    several.stack.kill("worker")
    assert await loading.code() == grpc.StatusCode.UNAVAILABLE
