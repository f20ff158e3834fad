"""Inputs of megabytes are refused before they cost memory, through every door."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from agentmem.v1 import inference_pb2, types_pb2
from tests import npm_tokenizers
from tests.peaks import Peaks
from tests.system.client import append, refused
from tests.system.shared import of_module
from tests.system.stack import Stack
from tests.tiny_models import write_llama

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
ALLOWED = 768 * MIB
"""More than a process takes above what it had before; four such inputs took sixteen gigabytes."""
WORDS = "y " * (15 * MIB // 2)
LOOK_ALIKES = "<|im_end|>" * (15 * MIB // 10)
PROSE = "The colour of the boat by the sea is green, and the house is red. " * (15 * MIB // 67)


stack = of_module("tiny", write_llama)


def memory_of(stack: Stack) -> Peaks:
    return Peaks({name: process.pid for name, process in stack.processes.items()})


async def posted(stack: Stack, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=stack.url, timeout=240) as http:
        return await http.post(path, json={"model": stack.model, **body})


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux says how much memory was taken")
async def test_four_prompts_of_15_mib_at_once_cost_little(stack: Stack) -> None:
    memory = memory_of(stack)
    answers = await asyncio.gather(*(posted(stack, "/v1/completions", prompt=WORDS) for _ in range(4)))
    for answer in answers:
        assert answer.status_code == 400
        assert "tokens and the model's context holds 4096; shorten it" in answer.json()["error"]["message"]
    assert all(peak < ALLOWED for peak in memory.most().values()), memory.most()
    assert all(kept < ALLOWED // 2 for kept in memory.kept().values()), memory.kept()
    assert (await posted(stack, "/v1/completions", prompt="The boat", max_tokens=1)).status_code == 200


TOOL = {"type": "function", "function": {"name": "f", "description": WORDS, "parameters": {"type": "object"}}}


@pytest.mark.slow("look-alikes", "token_ids")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": user(WORDS)}),
        ("/v1/chat/completions", {"messages": user(LOOK_ALIKES)}),
        ("/v1/completions", {"prompt": LOOK_ALIKES}),
        ("/v1/completions", {"prompt": LOOK_ALIKES, "parse_special": False}),
        ("/v1/completions", {"prompt": [3] * (MIB - 4096)}),
        ("/v1/messages/count_tokens", {"messages": user(WORDS)}),
        ("/v1/responses", {"input": WORDS}),
    ],
    ids=["messages", "look-alikes", "specials", "literal", "token_ids", "count", "responses"],
)
async def test_every_door_refuses_what_cannot_fit(stack: Stack, path: str, body: dict[str, Any]) -> None:
    answer = await posted(stack, path, **body)
    assert answer.status_code == 400, answer.text[:300]
    assert "tokens and the model's context holds 4096; shorten it" in answer.text


@pytest.mark.slow
async def test_the_contract_refuses_what_cannot_fit(stack: Stack) -> None:
    client = await stack.client("gateway")
    key = client.key("ada")
    await client.say("ada", "hello", max_tokens=2)
    text = types_pb2.Append(text=WORDS)
    for call in (
        client.inference.Generate(client.request("ada", append=text)).__aiter__().__anext__(),
        client.prefill("ada", append=append(WORDS)),
        client.inference.CountTokens(inference_pb2.CountTokensRequest(key=key, append=text)),
        client.probe("ada", prompt=WORDS),
    ):
        await refused(call, grpc.StatusCode.FAILED_PRECONDITION, "context holds 4096; shorten it")
    assert len((await stack.ledger("ada")).token_ids)


def write_gemma(directory: Path) -> Path:
    """A random model under Gemma's tokenizer."""
    files = npm_tokenizers.directory("gemma3")
    write_llama(directory, vocab_size=262145, context=1 << 17)
    for file in npm_tokenizers.FILES:
        shutil.copy(files / file, directory / file)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "bos_token_id": 2, "eos_token_id": [1, 106]}))
    return directory


gemma = of_module("gemma", write_gemma)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux says how much memory was taken")
async def test_a_long_text_is_tokenized_no_further_than_needed(gemma: Stack) -> None:
    """Nothing says of prose that it cannot fit until twice the context's tokens were counted."""
    memory = memory_of(gemma)
    answers = await asyncio.gather(*(posted(gemma, "/v1/completions", prompt=PROSE) for _ in range(3)))
    for answer in answers:
        assert answer.status_code == 400
        assert "more than 262144 tokens and the model's context holds 131072" in answer.text
    assert all(peak < ALLOWED for peak in memory.most().values()), memory.most()
