"""How many templates go on from what a model wrote, when the chat comes back as clients send it.

Each family is a template with the traits of models that are much used: what it leaves out of earlier turns, how it ends
them, what its generation prompt opens. The model writes an answer, with reasoning before it where the family has a way
to; the client sends the chat back with the answer as it got it. Few templates render what was written; the memory is
gone on from all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from agentmem.conversations import message_hashes
from agentmem.kv.ledger import Ledger
from agentmem.v1 import types_pb2
from inference_service.domain import MessagesInput
from inference_service.families import chats
from inference_service.memory.match import MatchLimits
from inference_service.memory.plan import Plan, Planner
from inference_service.text.answering import AnswerDelta, split_answer
from inference_service.text.reasoning import ReasoningFormat, by_states, tagged
from inference_service.text.rendering import Renderer
from inference_service.text.tokenizer import Tokenizer
from inference_service.turns.inputs import InputPlanner
from tests.inference_service.chat_templates import APERTUS, GPT_OSS, MISTRAL, Family
from tests.inference_service.real_tokenizers import SPECIALS, byte_level_backend

pytestmark = pytest.mark.sampled(2)

TAGS = ("<think>", "</think>")
THOUGHT, SAID = "The user asks for the colour. It is green.", "The boat is green."
SYSTEM, QUESTION, NEXT = "You are marco.", "What is the colour of the boat?", "And of the house?"
_IM = ("<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class Way:
    """How one model writes: `thinks` is what its answer looks like with reasoning, None where it never thinks."""

    family: Family
    thinks: str | None = None
    says: str = "{said}"
    tags: tuple[str, str] | None = None
    special_tags: bool = False
    plain_arguments: tuple[tuple[str, Any], ...] = ()
    """Template arguments under which it does not think."""

    def __str__(self) -> str:
        return self.family.name


def _chatml(name: str, assistant: str, generation_prompt: str, before: str = "") -> Family:
    """ChatML in which an assistant's message is `assistant`, and what asks for one ends with `generation_prompt`."""
    template = (
        before + "{% set ns = namespace(asked=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}" + assistant + "{% else %}"
        "{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n" + generation_prompt + "{% endif %}"
    )
    return Family(name, template, _IM, ("<|im_end|>",))


_LATE = (
    "{% if m.reasoning_content and loop.index0 > ns.asked %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
)
_AFTER = "{{ m.content.split('</think>')[-1].lstrip('\n') }}"
_EMPTY = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
_OPENED = {"thinks": "{thought}\n</think>\n\n{said}", "says": "\n</think>\n\n{said}", "tags": TAGS}
"""Where the generation prompt begins the reasoning."""
_THOUGHT = "<think>\n{thought}\n</think>\n\n{said}"
_OFF = (("enable_thinking", False),)

WAYS = (
    Way(_chatml("ChatML", "{{ m.content }}", "")),
    Way(_chatml("ChatML that trims", "{{ m.content | trim }}", ""), says="{said}\n"),
    Way(_chatml("Qwen 3", _LATE + _AFTER, _EMPTY), _THOUGHT, tags=TAGS, plain_arguments=_OFF),
    Way(_chatml("DeepSeek R1", _AFTER, "<think>\n"), **_OPENED),
    Way(_chatml("SmolLM 3", "<think>\n\n</think>\n" + _AFTER, _EMPTY), _THOUGHT, tags=TAGS, plain_arguments=_OFF),
    Way(Family(
        "Mistral 7B", "<s>{% for m in messages %}{% if m.role == 'user' %}"
        "{% if loop.last and tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}[INST] {{ m.content }}[/INST]"
        "{% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}",
        ("<s>", "</s>", "[INST]", "[/INST]", "[TOOLS]", "[/TOOLS]"), ("</s>",)), says=" {said}"),
    Way(APERTUS, "<|inner_prefix|>{thought}<|inner_suffix|>{said}", tags=("<|inner_prefix|>", "<|inner_suffix|>"),
        special_tags=True),
    Way(GPT_OSS, "<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>{said}",
        "<|channel|>final<|message|>{said}"),
    Way(MISTRAL),
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    tokenizer: Tokenizer
    renderer: Renderer
    planner: Planner
    reasoning: ReasoningFormat | None


@cache
def _plain_backend() -> str:
    return byte_level_backend().to_str()


@cache
def model(way: Way) -> Model:
    backend = Backend.from_str(_plain_backend())
    backend.add_special_tokens(list(way.family.specials))
    backend.add_special_tokens(list(way.tags) if way.tags and way.special_tags else [])
    whole = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=SPECIALS[0],
        eos_token=way.family.stops[0],
        chat_template=way.family.template,
    )
    tokenizer = Tokenizer(backend, [backend.token_to_id(stop) for stop in way.family.stops])
    reasoning: ReasoningFormat | None = None
    if way.family is GPT_OSS:
        reasoning = by_states(chats.HARMONY, "header", tokenizer, chats.HARMONY_OPENINGS)
    elif way.tags:
        reasoning = tagged(*way.tags, tokenizer)
    renderer = Renderer(tokenizer, whole.apply_chat_template, reasoning=reasoning)
    return Model(tokenizer, renderer, Planner(tokenizer, renderer, MatchLimits()), reasoning)


class Agent:
    """An agent's ledger, turn by turn, as the runner and the store make it."""

    def __init__(self, of: Model, chat: MessagesInput) -> None:
        self._of = of
        self.chat = chat
        self.ledger = Ledger()
        self.computed = 0

    def plan(self, chat: MessagesInput) -> Plan:
        return InputPlanner(self._of.planner, self.ledger, parse_special=False, generation_prompt=True).plan(chat)

    def turn(self, written: str, chat: MessagesInput) -> AnswerDelta:
        """A turn in which the model writes that; what a client gets."""
        plan = self.plan(chat)
        tokenizer = self._of.tokenizer
        generated = tokenizer.encode(written, parse_special=True)
        said = AnswerDelta(text=written)
        if self._of.reasoning is not None:
            said = split_answer(self._of.reasoning, tokenizer, plan.sequence.tolist(), generated)
        else:
            said = AnswerDelta(
                text="".join(tokenizer.token_bytes(i).decode() for i in generated if i not in tokenizer.special_ids)
            )
        answer = {"role": "assistant", "content": said.text}
        hashes = message_hashes((*chat.messages, answer), chat.tools, chat.template_arguments)
        added = (*plan.new_ids.tolist(), *generated)
        self.computed += len(plan.new_ids)
        self.ledger = self.ledger.kept(plan.keep_tokens).followed_by(
            added, tokenizer.pieces(added), tokenizer.hash, len(generated), message_hashes=hashes
        )
        return said


def asked(*messages: dict[str, Any], history: Any = types_pb2.HISTORY_MEMORY, **arguments: Any) -> MessagesInput:
    return MessagesInput(messages, (), arguments, history)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def second_plan(way: Way, history: Any, *, thinking: bool, sent_back: bool) -> tuple[Agent, Plan]:
    """The plan of a second turn; `sent_back` says that the client sends the reasoning back, too."""
    arguments = {} if thinking else dict(way.plain_arguments)
    agent = Agent(model(way), asked())
    written = (way.thinks or way.says) if thinking else way.says
    said = agent.turn(
        written.format(thought=THOUGHT, said=SAID) + way.family.stops[0], asked(user(QUESTION), **arguments)
    )
    if thinking:
        assert (said.reasoning, said.text.strip()) == (THOUGHT, SAID), "the client sees them apart"
    answer = {"role": "assistant", "content": said.text}
    if sent_back and said.reasoning:
        answer["reasoning_content"] = said.reasoning
    plan = agent.plan(asked(user(QUESTION), answer, user(NEXT), history=history, **arguments))
    return agent, plan


def extends(agent: Agent, plan: Plan) -> bool:
    """All of the memory stays, but a stop token for which history has another one."""
    return plan.keep_tokens >= len(agent.ledger) - 1


THINKERS = [way for way in WAYS if way.thinks]


@pytest.mark.parametrize(("ways", "thinking"), [(WAYS, False), (THINKERS, True)], ids=["plain", "thinking"])
def test_all_templates_go_on_from_the_memory_and_few_render_it(ways: Sequence[Way], thinking: bool) -> None:
    def count(history: Any) -> set[str]:
        return {str(w) for w in ways if extends(*second_plan(w, history, thinking=thinking, sent_back=False))}

    assert count(types_pb2.HISTORY_MEMORY) == set(map(str, ways))
    assert len(count(types_pb2.HISTORY_TEMPLATE)) < len(ways), "else there is nothing to do"


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("sent_back", [False, True], ids=["text alone", "with its reasoning"])
@pytest.mark.parametrize("thinking", [False, True], ids=["plain", "thinking"])
def test_what_follows_is_what_the_template_puts_there(way: Way, thinking: bool, sent_back: bool) -> None:
    if thinking and not way.thinks:
        return
    of = model(way)
    agent, plan = second_plan(way, types_pb2.HISTORY_MEMORY, thinking=thinking, sent_back=sent_back)
    _, rendered = second_plan(way, types_pb2.HISTORY_TEMPLATE, thinking=thinking, sent_back=sent_back)
    text, whole = (of.tokenizer.decode(each.sequence.tolist()).decode() for each in (plan, rendered))
    kept = agent.ledger.kept(plan.keep_tokens).text.decode()
    assert text.startswith(kept) and SAID in kept and (THOUGHT in kept) == thinking
    assert text.count(QUESTION) == text.count(NEXT) == 1
    # Behind the answer, and the white space that only one of them has, both are the same.
    after, expected = (each.rpartition(SAID)[2].lstrip(" \n") for each in (text, whole))
    assert after == expected


QWEN3 = next(way for way in WAYS if way.family.name == "Qwen 3")


def test_an_edited_answer_is_another_and_so_is_edited_reasoning() -> None:
    agent = Agent(model(QWEN3), asked())
    said = agent.turn(_THOUGHT.format(thought=THOUGHT, said=SAID) + "<|im_end|>", asked(user(QUESTION)))
    answer = {"role": "assistant", "content": said.text, "reasoning_content": said.reasoning}

    def kept(**edited: Any) -> int:
        return agent.plan(asked(user(QUESTION), {**answer, **edited}, user(NEXT))).keep_tokens

    assert kept() == kept(reasoning_content=None) == kept(reasoning_content=f"\n{THOUGHT}\n") == len(agent.ledger)
    for edited in ({"content": SAID[:-1]}, {"reasoning_content": THOUGHT[:-1]}, {"reasoning_content": "No."}):
        assert kept(**edited) < len(agent.ledger), edited
    tools = MessagesInput((user(QUESTION), answer, user(NEXT)), ({"name": "f"},))
    assert agent.plan(tools).keep_tokens < len(agent.ledger), "the template may have put the tools in front"


def test_asking_again_goes_back_to_the_turn_before_and_keeps_what_was_thought_until_then() -> None:
    agent, messages = Agent(model(QWEN3), asked()), [user(QUESTION)]
    ends = []
    for number in range(3):
        written = _THOUGHT.format(thought=f"I muse on {number}.", said=f"Answer {number}.")
        said = agent.turn(written + "<|im_end|>", asked(*messages))
        ends.append(len(agent.ledger))
        messages += [{"role": "assistant", "content": said.text}, user(f"Question {number}?")]
    again = agent.plan(asked(*messages[:-2]))
    assert again.kind == types_pb2.MATCH_PARTIAL and again.keep_tokens > ends[1], "the question was there, too"
    other = agent.plan(asked(*messages[:4], user("Something else?")))
    assert ends[1] <= other.keep_tokens < ends[2]
    rendered = agent.plan(asked(*messages[:4], user("Something else?"), history=types_pb2.HISTORY_TEMPLATE))
    assert rendered.keep_tokens < ends[0], "the template leaves out all that was thought"


def test_what_the_template_is_told_of_the_beginning_counts() -> None:
    effort = "{{ 'Reasoning: ' + (effort or 'low') }}\n"
    way = replace(QWEN3, family=replace(QWEN3.family, template=effort + QWEN3.family.template))
    agent = Agent(model(way), asked())
    said = agent.turn(_THOUGHT.format(thought=THOUGHT, said=SAID) + "<|im_end|>", asked(user(QUESTION)))
    messages = (user(QUESTION), {"role": "assistant", "content": said.text}, user(NEXT))
    assert agent.plan(asked(*messages)).keep_tokens == len(agent.ledger)
    high = agent.plan(asked(*messages, effort="high"))
    assert high.keep_tokens < len(agent.ledger)
    assert model(way).tokenizer.decode(high.sequence.tolist()).startswith(b"Reasoning: high")


def test_a_memory_that_no_longer_fits_is_rendered() -> None:
    of = model(QWEN3)
    agent = Agent(of, asked())
    said = agent.turn(_THOUGHT.format(thought=THOUGHT, said=SAID) + "<|im_end|>", asked(user(QUESTION)))
    again = asked(user(QUESTION), {"role": "assistant", "content": said.text}, user(NEXT))
    needed = len(agent.plan(again).sequence)
    for most, kept in ((needed, True), (needed - 1, False)):
        planner = Planner(of.tokenizer, of.renderer, MatchLimits(most_tokens=most))
        plan = InputPlanner(planner, agent.ledger, parse_special=False, generation_prompt=True).plan(again)
        assert (THOUGHT.encode() in of.tokenizer.decode(plan.sequence.tolist())) == kept
        assert (plan.reason == types_pb2.MISS_REASON_TEMPLATE) != kept


def test_an_answer_that_lost_a_token_to_a_stop_string_is_rendered() -> None:
    of = model(WAYS[0])
    agent = Agent(of, asked())
    agent.turn("The boat is", asked(user(QUESTION)))
    told = {"role": "assistant", "content": "The boat is gr"}
    hashes = message_hashes((user(QUESTION), told))
    turn = agent.ledger.turns[0]._replace(message_hash=hashes[-1])
    agent.ledger = replace(agent.ledger, turns=(turn,))
    plan = agent.plan(asked(user(QUESTION), told, user(NEXT)))
    assert b"The boat is gr<|im_end|>" in of.tokenizer.decode(plan.sequence.tolist())
