"""Agents with recurrent layers that move: their states stand for exactly the tokens of their KV, or are refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xxhash

from agentmem.v1 import types_pb2
from inference_service.portable import header
from inference_service.portable.format import DTYPE_BYTES, Manifest
from tests.oracle import Oracle
from tests.system.files import exported, forged, imported, messages, metadata, refusal
from tests.system.shared import SharedStacks, Writer
from tests.system.stack import hosting
from tests.system.test_hybrid import ARGUMENTS, LONG, check, recurrent

STATE = "state_0_0"


@pytest.mark.slow
@pytest.mark.sampled(3)
@recurrent
async def test_the_states_of_a_cut_answer_are_those_before_it(stacks: SharedStacks, write: Writer) -> None:
    """So the KV ends there, in the middle of a block, and is found by a turn whose ledger goes on."""
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write) as stack, hosting(f"tiny={stacks.directory(write)}") as elsewhere:
        client, there = await stack.client(), await elsewhere.client()
        arguments: dict[str, Any] = {**ARGUMENTS, "max_tokens": 30}
        free = await client.say("free", LONG, **arguments)
        stop = next(text for text in free.text[len(free.text) // 2 :] if text.strip() and text != "\ufffd")
        cut = await client.say("a", LONG, **arguments, stop=[stop])
        file = await exported(client, "a")
        said, prompt = metadata(file), cut.started.cache.prompt_tokens
        position = int(said["kv_tokens"])
        assert prompt - 40 < position < prompt < int(said["total_tokens"])
        assert position % 256 and said["state_position"] == str(position)
        assert (await imported(there, file, "b")).warm_tokens == position
        renamed = {"agent_id": "", "metadata_checksum": ""}
        again = metadata(await exported(there, "b"))
        assert {**again, **renamed} == {**said, **renamed}, "it comes out as it went in"
        turn = await there.say("b", "Who told you?", **ARGUMENTS)
        assert (turn.match, turn.cached) == ("EXTEND", {"warm": position})
        await check(elsewhere, oracle, turn, "b")


@pytest.mark.slow
@pytest.mark.sampled(3)
@recurrent
async def test_states_that_are_no_good_are_refused_by_name(stacks: SharedStacks, write: Writer) -> None:
    async with stacks.using(write) as stack:
        client = await stack.client()
        await client.say("a", LONG, **ARGUMENTS)
        file = await exported(client, "a")
        said = metadata(file)
        tokens = int(said["kv_tokens"])
        assert (said["format_version"], tokens) == ("3", int(said["total_tokens"]))
        await client.delete_all()

        moved = forged(file, lambda said: said.update(state_position=str(tokens - 1)))
        older = forged(file, lambda said: said.update(format_version="2"))
        flipped = bytearray(file)
        flipped[place(file, STATE)] ^= 1
        for bad, reason in (
            (moved, f"states are those of position {tokens - 1}, and its KV ends at {tokens}"),
            (older, "unexpected metadata"),
            (bytes(flipped), "checksum"),
            (with_first_number(file, STATE, np.nan), f"some numbers of {STATE} are not finite"),
            (with_first_number(file, STATE, -np.inf), f"some numbers of {STATE} are not finite"),
        ):
            code, why = await refusal(client, bad, "b")
            assert code == "DATA_LOSS" and reason in why
        assert not [*stack.block_files(), *stack.window_files(), *(stack.data / "staging").iterdir()]

        turned = encoded(file, lambda manifest: with_turned_state(manifest))
        key = types_pb2.AgentKey(namespace="default", agent_id="c")
        answer = await client.agents.ImportAgent(messages(turned, key), timeout=60)
        assert f"the file's KV has {STATE} of F32" in answer.kv_misfit
        assert (answer.agent.tokens, answer.agent.warm_tokens) == (tokens, 0)
        assert not [*stack.block_files(), *stack.window_files()]

        assert (await imported(client, file, "b")).warm_tokens == tokens


def parsed(file: bytes) -> tuple[Manifest, bytes, bytes]:
    """What the file says, the checksum of its data, and its data."""
    size = header.header_bytes(file[:8])
    return (*header.parse(file[8:size]), file[size:])


def encoded(file: bytes, change: Callable[[Manifest], Manifest]) -> bytes:
    """The file with another manifest, whose checksum is right."""
    manifest, checksum, data = parsed(file)
    return header.encode(change(manifest), checksum) + data


def with_turned_state(manifest: Manifest) -> Manifest:
    """The first array of states has its axes in another order."""
    (first, *others), *layers = manifest.geometry.states
    turned = first._replace(shape=first.shape[::-1])
    assert turned != first
    return replace(manifest, geometry=replace(manifest.geometry, states=((turned, *others), *layers)))


def place(file: bytes, tensor: str) -> int:
    """Where in the file a tensor begins."""
    return header.header_bytes(file[:8]) + parsed(file)[0].places[tensor].start


def with_first_number(file: bytes, tensor: str, number: float) -> bytes:
    """The file with another number in it, and right checksums."""
    manifest, _, data = parsed(file)
    at = manifest.places[tensor].start
    assert manifest.places[tensor].dtype == "F32"
    changed = data[:at] + np.float32(number).tobytes() + data[at + DTYPE_BYTES["F32"] :]
    return header.encode(manifest, xxhash.xxh3_128_digest(changed)) + changed
