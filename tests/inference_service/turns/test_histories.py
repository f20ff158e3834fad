"""How much of the memory a chat goes on from, by a template that leaves earlier reasoning out, as Qwen 3's does."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentmem.conversations import message_hashes
from agentmem.v1 import types_pb2
from inference_service.memory.trimming import room_for_answer
from tests.inference_service.published_models import Conversation, Published, opened_by

THOUGHT, SAID = "The user asks for the colour. It is green.", "The boat is green."
QUESTION, NEXT = "What is the colour of the boat?", "And of the house?"
WRITTEN = "<think>\n{thought}\n</think>\n\n{said}"
TEMPLATE = (
    "{% set ns = namespace(asked=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% if m.reasoning_content and loop.index0 > ns.asked %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return opened_by(TEMPLATE, tmp_path_factory.mktemp("qwen3"))


async def answered(model: Any, *, sent_back: bool = False) -> Conversation:
    """A chat after its first answer, which was thought about."""
    chat = Conversation(Published("Qwen 3", ""), sent_back=sent_back, model=model)
    _, heard = await chat.turn(WRITTEN.format(thought=THOUGHT, said=SAID), user(QUESTION))
    assert (heard.reasoning, heard.text) == (THOUGHT, SAID)
    return chat


async def test_an_edited_answer_is_another_and_so_is_edited_reasoning(model: Any) -> None:
    chat = await answered(model, sent_back=True)
    answer, whole = chat.messages[-1], len(chat.memory.ledger)

    async def kept(**edited: Any) -> int:
        chat.messages[-1] = {**answer, **edited}
        return (await chat.plan(user(NEXT))).plan.keep_tokens

    for same in ({}, {"reasoning_content": None}, {"reasoning_content": f"\n{THOUGHT}\n"}):
        assert await kept(**same) == whole, same
    for edited in ({"content": SAID[:-1]}, {"reasoning_content": THOUGHT[:-1]}, {"reasoning_content": "No."}):
        assert await kept(**edited) < whole, edited
    chat.tools = ({"name": "f"},)
    assert await kept() < whole, "the template may have put the tools in front"


async def test_asking_again_goes_back_to_the_turn_before_and_keeps_what_was_thought_until_then(model: Any) -> None:
    chat, ends = Conversation(Published("Qwen 3", ""), model=model), []
    for number in range(3):
        await chat.turn(
            WRITTEN.format(thought=f"I muse on {number}.", said=f"Answer {number}."), user(f"Question {number}?")
        )
        ends.append(len(chat.memory.ledger))
    said, chat.messages = chat.messages, []
    again = (await chat.plan(*said[:-1])).plan
    assert again.kind == types_pb2.MATCH_PARTIAL and again.keep_tokens > ends[1], "the question was there, too"
    other = (await chat.plan(*said[:4], user("Something else?"))).plan
    assert ends[1] <= other.keep_tokens < ends[2]
    rendered = (await chat.plan(*said[:4], user("Something else?"), history=types_pb2.HISTORY_TEMPLATE)).plan
    assert rendered.keep_tokens < ends[0], "the template leaves out all that was thought"


async def test_what_the_template_is_told_of_the_beginning_counts(tmp_path: Path) -> None:
    chat = await answered(opened_by("{{ 'Reasoning: ' + (effort or 'low') }}\n" + TEMPLATE, tmp_path))
    assert (await chat.plan(user(NEXT))).plan.keep_tokens == len(chat.memory.ledger)
    high = (await chat.plan(user(NEXT), effort="high")).plan
    assert high.keep_tokens < len(chat.memory.ledger)
    assert chat.text(high.sequence).startswith("Reasoning: high")


async def test_a_memory_that_no_longer_fits_is_rendered(model: Any) -> None:
    chat = await answered(model)
    needed = len((await chat.plan(user(NEXT))).plan.sequence)
    enough = next(n for n in range(needed, 2 * needed) if n - room_for_answer(n, 4096) >= needed)
    for context, kept in ((enough, True), (enough - 1, False)):
        chat.model = SimpleNamespace(**vars(model) | {"context_length": context})
        plan = (await chat.plan(user(NEXT))).plan
        assert (THOUGHT in chat.text(plan.sequence)) == kept
        assert (plan.reason == types_pb2.MISS_REASON_TEMPLATE) != kept


async def test_an_answer_that_lost_a_token_to_a_stop_string_is_rendered(model: Any) -> None:
    chat = await answered(model)
    chat.messages[-1] = {"role": "assistant", "content": f"{SAID} It is gr"}
    turn = chat.memory.ledger.turns[0]._replace(message_hash=message_hashes(chat.messages)[-1])
    chat.memory.ledger = replace(chat.memory.ledger, turns=(turn,))
    assert f"{SAID} It is gr<|im_end|>" in chat.text((await chat.plan(user(NEXT))).plan.sequence)
