"""Five turns with the tokenizers of well-known models and the templates that they publish: each costs its new tokens.

The client sends its whole chat each time. Where a turn costs more, it is the template's doing, and the plan says so.
"""

from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from agentmem.kv.ledger import common_length
from agentmem.v1.types_pb2 import (
    MATCH_EXTEND,
    MATCH_NEW,
    MATCH_PARTIAL,
    MISS_REASON_TEMPLATE,
    MISS_REASON_UNSPECIFIED,
)
from inference_service.turns.turn import Turn
from tests.inference_service.published_models import MODELS, Conversation, Published

pytestmark = pytest.mark.sampled(8)

SYSTEM = {"role": "system", "content": "You are marco, and you know each boat of the harbour. You are brief."}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
TURNS = 5
AROUND = 24
"""More tokens than any of these templates puts around one message and before the answer to it."""
NAMED = {model.name: model for model in MODELS}
TEMPLATES_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look_up", "arguments": {"word": "x"}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def question(number: int) -> dict[str, Any]:
    return user(f"What is the colour of boat number {number}?")


def costs_its_new_tokens(chat: Conversation, turn: Turn, before: int, new: str) -> None:
    """All that was there before is kept, and what is computed is the new message and what stands around it."""
    plan = turn.plan
    assert (plan.kind, plan.reason) == (MATCH_EXTEND, MISS_REASON_UNSPECIFIED)
    assert plan.keep_tokens == turn.keep_tokens == before
    text = chat.text(plan.new_ids)
    assert text.count(new.strip()) == 1 and text.count("colour of boat") == new.count("colour of boat")
    spelled = chat.model.tokenizer.encode(new, parse_special=False)
    assert len(plan.new_ids) <= len(spelled) + AROUND
    for place in plan.checkpoints[-1:]:
        assert new.strip() in chat.text(plan.sequence[before:place]), "behind the message, before the generation prompt"
        assert new.strip() not in chat.text(plan.sequence[place:])


async def five_turns(chat: Conversation, form: str, padding: str = "", **options: Any) -> None:
    """Each but the first must cost its new tokens."""
    chat.messages.append(SYSTEM)
    for number in range(TURNS):
        before = len(chat.memory.ledger)
        asked = user(f"{padding}{question(number)['content']}{padding}")
        said = f"{padding}Boat {number} is green.{padding}"
        turn, heard = await chat.turn(form.format(thought=f"I muse on {number}.", said=said), asked, **options)
        assert heard.text.strip() == said.strip()
        assert heard.reasoning == ("" if "{thought}" not in form else f"I muse on {number}.")
        if number:
            costs_its_new_tokens(chat, turn, before, asked["content"])
        else:
            assert turn.plan.kind == MATCH_NEW
    memory = chat.memory.ledger.text
    assert memory.count(b"colour of boat") == TURNS and memory.count(SYSTEM["content"].encode()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("of", MODELS, ids=str)
@pytest.mark.parametrize("padding", ["", "\n  "], ids=["plain", "white space"])
async def test_answers(of: Published, padding: str) -> None:
    await five_turns(Conversation(of), of.says, padding)


@pytest.mark.slow
@pytest.mark.parametrize("of", [model for model in MODELS if model.thinks], ids=str)
@pytest.mark.parametrize("sent_back", [False, True], ids=["text alone", "with its reasoning"])
async def test_reasoning_which_the_templates_leave_out_of_earlier_turns(of: Published, sent_back: bool) -> None:
    assert of.thinks is not None
    chat = Conversation(of, sent_back=sent_back)
    await five_turns(chat, of.thinks)
    assert chat.memory.ledger.text.count(b"I muse on") == TURNS


@pytest.mark.slow
@pytest.mark.parametrize("of", [model for model in MODELS if model.calls], ids=str)
async def test_tools_and_their_results(of: Published) -> None:
    assert of.calls is not None
    chat = Conversation(of, tools=(TOOL,))
    chat.messages.append(SYSTEM)
    for number in range(TURNS):
        asked, before = question(number), len(chat.memory.ledger)
        written = of.calls.format(name="look_up", arguments='{"word": "boat"}', id=f"abcdefgh{number}")
        turn, heard = await chat.turn(written, asked)
        assert [call.name for call in heard.calls] == ["look_up"]
        repeated = chat.text(turn.plan.new_ids).count("Looks a word up.")
        if number:
            assert (turn.plan.kind, turn.plan.keep_tokens) == (MATCH_EXTEND, before)
            # Mistral's template puts the tools before the last question, so they are new with each.
            assert repeated == ("[AVAILABLE_TOOLS]" in chat.text(turn.plan.sequence))
        if number and not repeated:
            costs_its_new_tokens(chat, turn, before, asked["content"])
        before = len(chat.memory.ledger)
        result = {"role": "tool", "content": f"Number {number}: green.", "tool_call_id": heard.calls[0].id}
        turn, _ = await chat.turn(of.says.format(said="It is green."), {**result, "name": "look_up"})
        costs_its_new_tokens(chat, turn, before, result["content"])


@pytest.mark.slow("Gemma 3")
@pytest.mark.parametrize("of", MODELS, ids=str)
async def test_a_chat_that_another_agent_began_with_calls(of: Published) -> None:
    chat = Conversation(of)
    called = {"role": "assistant", "content": "", "tool_calls": [TEMPLATES_CALL]}
    result = {"role": "tool", "content": "It floats.", "tool_call_id": "abcdefghi", "name": "look_up"}
    chat.messages += [SYSTEM, user("Look it up."), called, result, {"role": "assistant", "content": "A boat floats."}]
    if of.name == "Gemma 3":
        with pytest.raises(InvalidArgument, match="roles must alternate"):
            await chat.plan(question(0))
        return
    for number in range(3):
        before = len(chat.memory.ledger)
        turn, _ = await chat.turn(of.says.format(said=f"Boat {number} is green."), question(number))
        if number:
            costs_its_new_tokens(chat, turn, before, question(number)["content"])
    memory = chat.memory.ledger.text.decode()
    assert memory.count("It floats.") == 1
    if of.name == "DeepSeek V3":
        assert "look_up" not in memory, "it has calls in messages without content, which transformers does not give it"
    else:
        assert "look_up" in memory and '{"word": "x"}' in memory


@pytest.mark.slow
@pytest.mark.parametrize("of", [NAMED["Llama 3.2"], NAMED["GPT-OSS"]], ids=str)
async def test_the_date_stays_until_it_is_moved(of: Published) -> None:
    chat = Conversation(of)
    for number in range(TURNS):
        before = len(chat.memory.ledger)
        moved = {0: "2026-03-01T10:00:00+00:00", 3: "2026-03-02T10:00:00+00:00"}.get(number, "")
        turn, _ = await chat.turn(of.says.format(said="Green."), question(number), template_time=moved)
        if number == 3:
            assert (turn.plan.kind, turn.plan.reason) == (MATCH_PARTIAL, MISS_REASON_TEMPLATE)
            assert "boat number 0" in chat.text(turn.plan.new_ids) and turn.plan.keep_tokens > 10
        elif number:
            costs_its_new_tokens(chat, turn, before, question(number)["content"])


async def test_prompts_under_other_arguments_part_behind_the_checkpoint() -> None:
    chat = Conversation(NAMED["Qwen 3"])
    plans = [(await chat.plan(question(0), enable_thinking=thinks)).plan for thinks in (True, False)]
    common = common_length(*(plan.sequence for plan in plans))
    assert plans[0].checkpoints == plans[1].checkpoints
    assert 0 < plans[0].checkpoints[-1] <= common < len(plans[1].sequence)
