"""Models that come and go as clients see it: the SDKs, unmodified, before a worker that has room for one model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from tests.system.stack import Stack, hosting
from tests.tiny_models import write_llama, write_lora

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODELS = ("a", "a+support", "org/b")
SHORT: Any = {"max_tokens": 6, "temperature": 0}
ENDLESS: Any = {"model": "a", "max_tokens": 32_000, "logit_bias": {"2": -100}, "stream": True}
"""No end of turn: it runs until it is cancelled."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    root: Path = tmp_path_factory.mktemp("models")
    base = write_llama(root / "a", seed=0, context=32768)
    damaged = write_llama(root / "damaged", seed=2) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    flags = [
        *("--model", f"org/b={write_llama(root / 'b', seed=1)}", "--model", f"damaged={damaged.parent}"),
        *("--adapter", f"a+support={write_lora(root / 'lora', base)}", "--min-residency", "0", "--swap-wait", "1"),
    ]
    async with hosting(f"a={base}", "store", "worker", "gateway", worker_flags=tuple(flags)) as started:
        yield started


@pytest.fixture
def sdk(sdk: openai.AsyncOpenAI) -> openai.AsyncOpenAI:
    return sdk.with_options(max_retries=20)


@pytest.fixture
def claude(claude: anthropic.AsyncAnthropic) -> anthropic.AsyncAnthropic:
    return claude.with_options(max_retries=20)


async def states(sdk: openai.AsyncOpenAI) -> dict[str, str]:
    listed = [model async for model in await sdk.models.list()]
    return {model.id: (model.model_extra or {})["agentmem"]["state"] for model in listed}


async def swaps(stack: Stack) -> float:
    return sum(
        [await stack.metric("worker", "agentmem_model_unloads_total", model_id=m, reason="swap") for m in MODELS]
    )


@pytest.mark.slow
async def test_each_model_keeps_its_memory(stack: Stack, sdk: openai.AsyncOpenAI) -> None:
    histories: dict[str, list[Any]] = {name: [] for name in MODELS}
    cached: dict[str, list[int]] = {name: [] for name in MODELS}
    before = await swaps(stack)
    for question in ("The boat is green.", "Who told you that?"):
        for name, history in histories.items():
            history.append({"role": "user", "content": question})
            answer = await sdk.chat.completions.create(model=name, messages=history, **SHORT)
            history.append({"role": "assistant", "content": answer.choices[0].message.content})
            assert answer.usage and answer.usage.prompt_tokens_details
            cached[name].append(answer.usage.prompt_tokens_details.cached_tokens or 0)
            assert (await states(sdk))[name] == "loaded"
    for name in MODELS:
        first, second = cached[name]
        assert 0 == first < second, name
    assert await swaps(stack) - before >= 4
    said = {str([turn["content"] for turn in history if turn["role"] == "assistant"]) for history in histories.values()}
    assert len(said) == len(MODELS), "models that say the same may be the same"


async def test_a_model_that_cannot_be_loaded(sdk: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic) -> None:
    hi: Any = [{"role": "user", "content": "hi"}]
    await sdk.chat.completions.create(model="a", messages=hi, **SHORT)
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="damaged or cut short"):
            await sdk.chat.completions.create(model="damaged", messages=hi, stream=stream)
        with pytest.raises(anthropic.BadRequestError, match="damaged or cut short"):
            await claude.messages.create(model="damaged", messages=hi, max_tokens=6, stream=stream)
    assert await states(sdk) == {
        "a": "loaded",
        "a+support": "registered",
        "org/b": "registered",
        "damaged": "failed",
    } | {"demo": "registered"}


@pytest.mark.slow
async def test_a_swap_that_takes_too_long_is_waited_for(
    sdk: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    hi: Any = [{"role": "user", "content": "hi"}]
    running = await sdk.chat.completions.create(messages=hi, **ENDLESS)
    await anext(running)
    waiting = asyncio.create_task(sdk.chat.completions.create(model="org/b", messages=hi, **SHORT))
    try:
        async with asyncio.timeout(60):
            while (await states(sdk))["a"] != "draining":
                await asyncio.sleep(0.02)
        others, own = await asyncio.gather(
            claude.with_options(max_retries=0).messages.create(model="org/b", messages=hi, max_tokens=6),
            sdk.with_options(max_retries=0).chat.completions.create(model="a", messages=hi, **SHORT),
            return_exceptions=True,
        )
    finally:
        await running.close()
    assert (await waiting).choices[0].message.content is not None
    assert isinstance(others, anthropic.APIStatusError) and isinstance(own, openai.InternalServerError)
    assert (others.status_code, others.response.headers["retry-after"]) == (529, "2")
    assert "'a' must end its requests first" in str(others)
    assert (own.status_code, own.response.headers["retry-after"]) == (503, "2")
