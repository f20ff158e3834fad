"""Inputs of agents that have a memory: what is new, what is the whole conversation, and what is refused."""

import itertools

import pytest

from agentmem.errors import FailedPrecondition, InvalidArgument
from agentmem.kv.ledger import Ledger
from agentmem.v1.inference_pb2 import (
    MEMORY_MODE_APPEND,
    MEMORY_MODE_AUTO,
    MEMORY_MODE_REFUSE,
    MEMORY_MODE_REPLACE,
    MemoryMode,
)
from agentmem.v1.types_pb2 import MATCH_DIVERGE, MATCH_EXTEND, MATCH_PARTIAL
from agentmem.validation import AgentKey
from inference_service.domain import AppendInput, MessagesInput, TextInput, TokensInput, TurnInput, TurnRequest
from inference_service.memory.match import MatchLimits
from inference_service.memory.plan import Plan
from inference_service.turns.inputs import InputPlanner
from tests.inference_service.memory.planning import World, world
from tests.inference_service.real_tokenizers import CHATML, byte_level_with_bos

SYSTEM_IN_FIRST = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = m.content + '\\n\\n' %}{% else %}<|im_start|>{{ m.role }}\n{{ ns.system }}{{ m.content }}"
    "<|im_end|>\n{% set ns.system = '' %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Gemma's: system messages have no turn of their own."""

FACT, QUESTION = ("user", "The colour of the boat is green."), ("user", "What is the colour of the boat?")
NOTED = ("assistant", "Noted.")
SYSTEM = ("system", "You are marco.")
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {}}}


def chat(*messages: tuple[str, str], tools: tuple[dict[str, object], ...] = ()) -> MessagesInput:
    return MessagesInput(tuple({"role": role, "content": content} for role, content in messages), tools)


@pytest.fixture(scope="module", params=[CHATML, SYSTEM_IN_FIRST], ids=["chatml", "system-in-first"])
def of(request: pytest.FixtureRequest) -> World:
    return world(byte_level_with_bos, request.param, MatchLimits())


def remembered(of: World, *messages: tuple[str, str], tools: tuple[dict[str, object], ...] = ()) -> Ledger:
    """Return a ledger after a turn: chat, answer and its end."""
    prompt = of.renderer.messages(chat(*messages, tools=tools), generation_prompt=True, parse_special=False)
    said = of.tokenizer.encode("Noted.<|im_end|>", parse_special=True)
    return of.ledger(prompt, said)


def plan(of: World, ledger: Ledger, given: TurnInput, mode: MemoryMode.ValueType) -> tuple[Plan, bool]:
    request = TurnRequest(AgentKey("n", "a", "m"), given, b"", memory_mode=mode)
    inputs = InputPlanner(of.planner, ledger, parse_special=False, generation_prompt=True)
    made, appended = inputs.plan_turn(request)
    if not appended:
        inputs.check_kept(request, made)
    return made, appended


def same(one: Plan, other: Plan) -> bool:
    return {**vars(one), "sequence": one.sequence.tolist()} == {**vars(other), "sequence": other.sequence.tolist()}


def text(of: World, made: Plan) -> str:
    return of.tokenizer.decode(made.sequence.tolist()).decode()


@pytest.mark.parametrize("mode", [MEMORY_MODE_AUTO, MEMORY_MODE_APPEND])
@pytest.mark.parametrize("system", [(), (SYSTEM,)])
def test_what_is_new_follows_all_that_is_there(of: World, mode: MemoryMode.ValueType, system: tuple[str, ...]) -> None:
    ledger = remembered(of, SYSTEM, FACT)
    made, appended = plan(of, ledger, chat(*system, QUESTION), mode)  # type: ignore[arg-type]
    assert appended and made.kind == MATCH_EXTEND
    assert made.sequence.tolist()[: len(ledger)] == ledger.token_ids.tolist()
    assert text(of, made) == ledger.text.decode() + (
        "\n<|im_start|>user\nWhat is the colour of the boat?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_is_new_is_planned_as_an_append_is(of: World) -> None:
    ledger = remembered(of, FACT)
    for given in (chat(QUESTION), TextInput(" And now?")):
        made, _ = plan(of, ledger, given, MEMORY_MODE_APPEND)
        as_append, appended = plan(of, ledger, AppendInput(given), MEMORY_MODE_AUTO)
        assert appended and same(made, as_append)
    made, appended = plan(of, ledger, TokensInput((5, 6)), MEMORY_MODE_APPEND)
    assert appended and made.sequence.tolist() == [*ledger.token_ids.tolist(), 5, 6]


@pytest.mark.parametrize("mode", [MEMORY_MODE_AUTO, MEMORY_MODE_APPEND, MEMORY_MODE_REPLACE, MEMORY_MODE_REFUSE])
def test_a_first_turn_is_the_same_under_each(of: World, mode: MemoryMode.ValueType) -> None:
    for given in (chat(SYSTEM, QUESTION), chat(SYSTEM, FACT, NOTED, QUESTION), TextInput("x")):
        made, appended = plan(of, Ledger(), given, mode)
        assert not appended and same(made, plan(of, Ledger(), given, MEMORY_MODE_REPLACE)[0])


@pytest.mark.parametrize("mode", [MEMORY_MODE_AUTO, MEMORY_MODE_REPLACE, MEMORY_MODE_REFUSE])
def test_a_whole_conversation_goes_on(of: World, mode: MemoryMode.ValueType) -> None:
    made, appended = plan(of, remembered(of, SYSTEM, FACT), chat(SYSTEM, FACT, NOTED, QUESTION), mode)
    assert (made.kind, appended) == (MATCH_EXTEND, False)


@pytest.mark.parametrize(
    ("there", "sent"),
    [
        *itertools.permutations(["You are marco.", "You are", "You are marco. And kind.", "You are lena."], 2),
        ("You are marco.", "You are marco.\n\nAnd kind."),
    ],
)
def test_only_the_same_system_message_is_left_out(of: World, there: str, sent: str) -> None:
    ledger = remembered(of, ("system", there), FACT)
    with pytest.raises(FailedPrecondition, match="X-Agent-Memory: append"):
        plan(of, ledger, chat(("system", sent), QUESTION), MEMORY_MODE_AUTO)
    made, _ = plan(of, ledger, chat(("system", sent), QUESTION), MEMORY_MODE_APPEND)
    assert sent in text(of, made)[len(ledger.text) :]


def test_nothing_new_is_refused(of: World) -> None:
    with pytest.raises(InvalidArgument, match="nothing new"):
        plan(of, remembered(of, SYSTEM, FACT), chat(SYSTEM), MEMORY_MODE_APPEND)


def test_tools_that_the_memory_does_not_know_are_refused() -> None:
    of = world(byte_level_with_bos)
    ledger = remembered(of, FACT)
    for mode in (MEMORY_MODE_AUTO, MEMORY_MODE_APPEND):
        with pytest.raises(FailedPrecondition, match="look_up"):
            plan(of, ledger, chat(QUESTION, tools=(TOOL,)), mode)
    ledger = remembered(of, SYSTEM, FACT, tools=(TOOL,))
    for given in (chat(QUESTION, tools=(TOOL,)), chat(SYSTEM, QUESTION, tools=(TOOL,))):
        made, appended = plan(of, ledger, given, MEMORY_MODE_AUTO)
        assert appended and "TOOLS" not in text(of, made)[len(ledger.text) :]


def test_a_conversation_without_a_common_message_is_refused(of: World) -> None:
    """However long the system message is that they have in common, and however their first messages begin."""
    system = ("system", "You are marco, and you have been told to say nothing but what is true." * 3)
    ledger = remembered(of, system, FACT)
    for first in ("The number of the locker is 417.", "The colour of the boat is red."):
        given = chat(system, ("user", first), NOTED, QUESTION)
        with pytest.raises(FailedPrecondition, match=r"all of it behind.* replace"):
            plan(of, ledger, given, MEMORY_MODE_AUTO)
        made, _ = plan(of, ledger, given, MEMORY_MODE_REPLACE)
        assert made.kind in (MATCH_PARTIAL, MATCH_DIVERGE)


def test_an_edited_answer_is_gone_on_from(of: World) -> None:
    """Also where less is in common than is worth reusing."""
    for first in (("user", "Hi"), ("user", "The colour of the boat is green. " * 4)):
        given = chat(first, ("assistant", "Well."), QUESTION)
        made, appended = plan(of, remembered(of, first), given, MEMORY_MODE_AUTO)
        assert not appended
        assert made.sequence.tolist() == plan(of, Ledger(), given, MEMORY_MODE_AUTO)[0].sequence.tolist()
        with pytest.raises(FailedPrecondition, match="does not continue"):
            plan(of, remembered(of, first), given, MEMORY_MODE_REFUSE)


def test_a_chat_that_the_memory_begins_is_whole(of: World) -> None:
    ledger = of.ledger(of.renderer.messages(chat(SYSTEM, FACT), generation_prompt=False, parse_special=False))
    made, appended = plan(of, ledger, chat(SYSTEM, FACT, QUESTION), MEMORY_MODE_AUTO)
    assert (made.kind, appended) == (MATCH_EXTEND, False)


def test_raw_prompts_are_whole(of: World) -> None:
    ledger = of.ledger(of.renderer.text("The boat is green. " * 5, parse_special=False))
    assert plan(of, ledger, TextInput("The boat is green. " * 6), MEMORY_MODE_AUTO)[0].kind == MATCH_EXTEND
    for given in (TextInput("Where is it?"), TokensInput((5, 6, 7))):
        with pytest.raises(FailedPrecondition, match="all of it behind"):
            plan(of, ledger, given, MEMORY_MODE_AUTO)
