"""Each door tells a model's reasoning apart from its answer, through the real SDKs."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.scripted_model import OPENING_TEMPLATE, SAID, THINKING_TEMPLATE, THOUGHT, write_thinking
from tests.system.client import Client, chat
from tests.system.stack import Stack, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRITTEN = f"<think>\n{THOUGHT}\n</think>\n\n{SAID}"
QUESTION: Any = {"role": "user", "content": "How is the sea?"}


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[THINKING_TEMPLATE, OPENING_TEMPLATE], ids=["asked", "opened"]
)
async def stack(request: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """All three processes, with a model that begins its reasoning itself, and one whose prompt begins it."""
    directory = write_thinking(tmp_path_factory.mktemp("thinking") / "m", request.param)
    async with running(f"thinking={directory}", "store", "worker", "gateway") as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> Client:
    return await stack.client()


async def test_the_contract_tells_both_and_the_ledger_has_what_was_written(client: Client, stack: Stack) -> None:
    request: dict[str, Any] = {"messages": chat(("user", "hi")), "request_id": "r", "top_logprobs": 0}
    turn = await client.turn("both", **request)
    assert (turn.reasoning, turn.text) == (THOUGHT, SAID)
    usage = turn.finished.usage
    assert len(turn.logprobs) == len(turn.token_ids) == usage.completion_tokens
    assert 4 <= usage.reasoning_tokens < usage.completion_tokens
    assert (await stack.ledger("both")).text.endswith(f"{WRITTEN}<|im_end|>".encode()), "the thinking is in memory"
    again = await client.turn("both", **request)
    assert again.finished.replayed
    assert (again.reasoning, again.text, again.token_ids) == (turn.reasoning, turn.text, turn.token_ids)
    assert again.finished.usage.reasoning_tokens == usage.reasoning_tokens
    appended = await client.say("both", "and now?")
    assert (appended.reasoning, appended.text) == (THOUGHT, SAID)


def cached(answer: Any) -> int:
    return int(answer.usage.prompt_tokens_details.cached_tokens)


@pytest.mark.parametrize("sent_back", [False, True], ids=["text alone", "with its reasoning"])
async def test_the_next_turn_goes_on_from_all_that_was_written(sdk: openai.AsyncOpenAI, sent_back: bool) -> None:
    said: list[Any] = [{"role": "user", "content": f"Is the answer sent back {sent_back}?"}]
    first = await sdk.chat.completions.create(model="thinking", messages=said)
    answer: Any = {"role": "assistant", "content": SAID}
    said += [{**answer, "reasoning_content": THOUGHT} if sent_back else answer, QUESTION]
    second = await sdk.chat.completions.create(model="thinking", messages=said)
    assert first.usage is not None
    assert cached(second) == first.usage.total_tokens, "what the template leaves out is still in memory"
    edited = [said[0], {**answer, "reasoning_content": "No."}, said[2]]
    third = await sdk.chat.completions.create(model="thinking", messages=edited)
    assert cached(third) < first.usage.total_tokens


async def test_a_request_can_have_its_history_rendered(sdk: openai.AsyncOpenAI) -> None:
    said: list[Any] = [{"role": "user", "content": "Is history rendered?"}]
    first = await sdk.chat.completions.create(model="thinking", messages=said)
    assert first.usage is not None
    said += [{"role": "assistant", "content": SAID}, QUESTION]
    rendered = {"X-Agent-History": "template"}
    second = await sdk.chat.completions.create(model="thinking", messages=said, extra_headers=rendered)
    assert 0 < cached(second) <= first.usage.prompt_tokens
    assert second.choices[0].message.content == SAID
    with pytest.raises(openai.BadRequestError) as unknown:
        await sdk.chat.completions.create(model="thinking", messages=said, extra_headers={"X-Agent-History": "x"})
    assert unknown.value.param == "X-Agent-History"


async def test_what_is_held_to_a_schema_is_thought_about_first(client: Client, sdk: openai.AsyncOpenAI) -> None:
    schema = '{"enum": ["calm", "rough"]}'
    turn = await client.turn("", messages=chat(("user", "hi")), json_schema=schema)
    assert (turn.reasoning, turn.text in ('"calm"', '"rough"')) == (THOUGHT, True), turn.text
    raw = await client.turn("", prompt="<|muse|>", json_schema=schema)
    assert (raw.reasoning, raw.text in ('"calm"', '"rough"')) == ("", True), "raw text has no format"
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "sea", "schema": {"enum": ["calm", "rough"]}}}
    answer = await sdk.chat.completions.create(model="thinking", messages=[QUESTION], response_format=wanted)
    message = answer.choices[0].message
    assert (message.model_extra or {})["reasoning_content"] == THOUGHT
    assert message.content in ('"calm"', '"rough"')
