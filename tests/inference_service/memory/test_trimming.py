"""A trimmed memory is a rendering of the same chat without its oldest turns."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.kv.ledger import Ledger
from inference_service.domain import MessagesInput
from inference_service.memory import trimming
from inference_service.memory.plan import Plan
from inference_service.memory.trimming import Bounds, bounds, room_for_answer
from inference_service.text.prompt import Rendered
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.memory.planning import World, world
from tests.inference_service.real_tokenizers import (
    CHATML,
    END,
    START,
    byte_level_with_bos,
    llama3_like,
)
from tests.inference_service.text.test_rendering_checkpoints import FOLDS

INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}<|im_end|>"
    "{% elif m.role == 'user' %}[INST] {% if loop.index == 2 and messages[0].role == 'system' %}"
    "{{ messages[0].content }}\n\n{% endif %}{{ m.content }}[/INST]{% endif %}{% endfor %}"
)
"""A header that is ordinary text, no header for answers, and the system message in the first question."""

words = st.text("ab é🙂\n", min_size=1, max_size=12).map(str.strip).filter(bool)


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def system_message(system: str) -> list[dict[str, Any]]:
    return [message("system", system)] if system else []


class Talk:
    """An agent that is told one question a turn, as the runner does it; answers may lack their end."""

    def __init__(self, of: World, system: str) -> None:
        self.of, self.system, self.ledger = of, system, Ledger()
        self.said: list[tuple[str, str]] = []

    def asked(self, question: str) -> Rendered:
        user = MessagesInput((message("user", question),))
        if not self.said:
            chat = MessagesInput((*system_message(self.system), *user.messages))
            return self.of.renderer.messages(chat, generation_prompt=True, parse_special=False)
        before = Rendered(self.ledger.text, tuple(self.of.planner.specials(self.ledger)))
        return self.of.renderer.continuation(before, user, generation_prompt=True, parse_special=False).addition

    def turn(self, question: str, answer: str, *, ended: bool) -> None:
        opening = len(self.ledger.text) and self.ledger.opening_bytes
        plan = self.of.planner.for_append(self.ledger, self.asked(question))
        generated = self.of.tokenizer.encode(answer, parse_special=False, continues=True)
        generated += [self.of.tokenizer.special_id(END)] if ended else []
        added = (*plan.sequence.tolist()[len(self.ledger) :], *generated)
        if not self.said:
            chat = MessagesInput((*system_message(self.system), message("user", question)))
            opening = len(self.of.renderer.opening(chat, parse_special=False))
        pieces = self.of.tokenizer.pieces(added)
        ledger = self.ledger.followed_by(added, pieces, self.of.tokenizer.hash, len(generated))
        self.ledger = Ledger(**{**vars(ledger), "opening_bytes": opening})
        self.said.append((question, answer))

    def rendered_from(self, first: int, question: str) -> bytes:
        said = [each for q, a in self.said[first:] for each in (message("user", q), message("assistant", a))]
        chat = MessagesInput((*system_message(self.system), *said, message("user", question)))
        return self.of.renderer.messages(chat, generation_prompt=True, parse_special=False).text


def decoded(of: World, plan: Plan) -> bytes:
    return of.tokenizer.decode(plan.sequence.tolist())


def check(talk: Talk, plan: Plan, question: str, limits: Bounds) -> int:
    """Check a trimmed plan; return how many turns were dropped."""
    trim, of = plan.trim, talk.of
    assert trim is not None
    first = trim.dropped_turns
    assert 0 < first <= len(talk.said)
    assert decoded(of, plan) == talk.rendered_from(first, question)
    assert len(plan.sequence) <= limits.most
    assert plan.sequence.tolist()[: plan.keep_tokens] == talk.ledger.token_ids.tolist()[: plan.keep_tokens]
    assert decoded(of, plan)[: trim.opening_bytes] == talk.ledger.text[: talk.ledger.opening_bytes]
    assert [turn.generated_tokens for turn in trim.carried_turns] == [
        turn.generated_tokens for turn in talk.ledger.turns[first:]
    ]
    for new, old in zip(trim.carried_turns, talk.ledger.turns[first:], strict=True):
        generated = slice(old.end_token - old.generated_tokens, old.end_token)
        assert (
            plan.sequence.tolist()[new.end_token - new.generated_tokens : new.end_token]
            == talk.ledger.token_ids.tolist()[generated]
        )
    return first


@pytest.mark.parametrize("template", [CHATML, FOLDS, INST], ids=["ChatML", "folds", "inst"])
@pytest.mark.parametrize("make", [byte_level_with_bos, llama3_like])
@settings(max_examples=25)
@given(data=st.data())
def test_what_stays_is_the_chat_without_its_oldest_turns(
    make: Callable[[], Tokenizer], template: str, data: st.DataObject
) -> None:
    talk = Talk(world(make, template), data.draw(st.sampled_from(["", "Be kind.", "You are\n\nthe 🙂"])))
    for question, answer in data.draw(st.lists(st.tuples(words, words), min_size=2, max_size=6)):
        talk.turn(question, answer, ended=data.draw(st.booleans()))
    question = data.draw(words)
    whole = talk.of.planner.for_append(talk.ledger, talk.asked(question))
    assert decoded(talk.of, whole) == talk.rendered_from(0, question)
    context = data.draw(st.integers(len(whole.sequence) // 3, len(whole.sequence)))
    limits = bounds(context, 1)
    plan = talk.of.planner.trimmed(talk.ledger, whole, limits)
    if plan is None:
        least = talk.of.tokenizer.encode(talk.rendered_from(len(talk.said), question).decode(), parse_special=True)
        assert len(least) + 8 > limits.limit, "it would have fitted"
        return
    check(talk, plan, question, limits)


@settings(max_examples=10)
@given(data=st.data())
def test_a_trimmed_memory_is_trimmed_again(data: st.DataObject) -> None:
    """The turns that were carried along are turns, and the opening is still known."""
    talk = Talk(world(byte_level_with_bos), "Be kind.")
    context, trims = 150, 0
    for number in range(40):
        question = data.draw(words) + str(number)
        plan = talk.of.planner.for_append(talk.ledger, talk.asked(question))
        if len(plan.sequence) > context - 20:
            trimmed = talk.of.planner.trimmed(talk.ledger, plan, bounds(context, 20))
            assert trimmed is not None
            assert trimmed.trim is not None
            dropped = check(talk, trimmed, question, bounds(context, 20))
            assert len(trimmed.sequence) <= context // 2
            talk.said, trims = talk.said[dropped:], trims + 1
            plan = trimmed
        generated = talk.of.tokenizer.encode("yes", parse_special=False)
        kept = talk.ledger.kept(plan.keep_tokens)
        added = (*plan.sequence.tolist()[plan.keep_tokens :], *generated)
        carried = plan.trim.carried_turns if plan.trim is not None else ()
        pieces = talk.of.tokenizer.pieces(added)
        opening = talk.of.renderer.opening(MessagesInput((message("system", "Be kind."),)), parse_special=False)
        ledger = kept.followed_by(added, pieces, talk.of.tokenizer.hash, len(generated), carried)
        talk.ledger = Ledger(**{**vars(ledger), "opening_bytes": len(opening)})
        talk.said.append((question, "yes"))
        assert len(talk.ledger.turns) == len(talk.said)
    assert 1 < trims < 20, "each trim makes room for more than a turn or two"


@pytest.mark.parametrize("template", [CHATML, FOLDS], ids=["ChatML", "folds"])
def test_a_note_stands_before_the_first_words_that_stay(template: str) -> None:
    talk = Talk(world(byte_level_with_bos, template), "Be kind.")
    for number in range(6):
        talk.turn(f"question {number}", f"answer {number}", ended=True)
    whole = talk.of.planner.for_append(talk.ledger, talk.asked("and now?"))
    limits = bounds(len(whole.sequence), 1, 30)
    bare, noted = (
        talk.of.planner.trimmed(talk.ledger, whole, limits, note) for note in (b"", f"{END}(a note) ".encode())
    )
    assert bare is not None
    assert noted is not None
    assert (bare.trim and bare.trim.dropped) == (noted.trim and noted.trim.dropped), "what was summarized is what goes"
    words = b"question " + str(noted.trim.dropped_turns if noted.trim else 0).encode()
    assert decoded(talk.of, noted) == decoded(talk.of, bare).replace(words, f"{END}(a note) ".encode() + words)
    remembered = Ledger().followed_by(noted.sequence, talk.of.tokenizer.pieces(noted.sequence), "")
    bare_ledger = Ledger().followed_by(bare.sequence, talk.of.tokenizer.pieces(bare.sequence), "")
    assert len(talk.of.planner.specials(remembered)) == len(talk.of.planner.specials(bare_ledger)), "a note is text"


def test_raw_texts_are_cut_where_a_turn_begins() -> None:
    of = world(byte_level_with_bos)
    ledger = Ledger()
    for number in range(5):
        text = of.renderer.text if not len(ledger) else of.renderer.appended_text
        ids = of.renderer.encode(text(f"line {number}\n", parse_special=False))
        ledger = ledger.followed_by(ids, of.tokenizer.pieces(ids), of.tokenizer.hash, 0)
    whole = of.planner.for_append(ledger, of.renderer.appended_text("more", parse_special=False))
    plan = of.planner.trimmed(ledger, whole, bounds(len(whole.sequence), 1))
    assert plan is not None
    text = decoded(of, plan).decode()
    assert text in {"<|bos|>" + "".join(f"line {i}\n" for i in range(first, 5)) + "more" for first in range(1, 6)}
    assert plan.trim is not None
    assert len(plan.trim.carried_turns) == 5 - plan.trim.dropped_turns


def test_what_a_tool_returned_stays_with_the_turn_that_asked_for_it() -> None:
    talk = Talk(world(byte_level_with_bos), "Be kind.")
    for number in range(3):
        talk.turn(f"question {number}", f"answer {number}", ended=True)
    before = Rendered(talk.ledger.text, tuple(talk.of.planner.specials(talk.ledger)))
    result = MessagesInput((message("tool", "12 degrees " * 5),))
    addition = talk.of.renderer.continuation(before, result, generation_prompt=True, parse_special=False).addition
    whole = talk.of.planner.for_append(talk.ledger, addition)
    plan = talk.of.planner.trimmed(talk.ledger, whole, bounds(len(whole.sequence), 1))
    assert plan is not None
    text = decoded(talk.of, plan).decode()
    assert f"{START}user\nquestion 2{END}\n{START}assistant\nanswer 2{END}\n{START}tool\n12" in text
    assert talk.of.planner.trimmed(talk.ledger, whole, bounds(len(addition.text) // 4, 1)) is None


def test_a_ledger_that_does_not_know_its_opening_has_what_is_before_the_first_question() -> None:
    talk = Talk(world(byte_level_with_bos), "Be kind.")
    for number in range(4):
        talk.turn(f"question {number}", f"answer {number}", ended=True)
    talk.ledger = Ledger(**{**vars(talk.ledger), "opening_bytes": 0})
    whole = talk.of.planner.for_append(talk.ledger, talk.asked("so?"))
    plan = talk.of.planner.trimmed(talk.ledger, whole, bounds(len(whole.sequence), 1))
    assert plan is not None
    assert plan.trim is not None
    assert decoded(talk.of, plan) == talk.rendered_from(plan.trim.dropped_turns, "so?")


@pytest.mark.parametrize("make", [byte_level_with_bos, llama3_like])
def test_a_system_prompt_that_was_taken_in_alone_is_an_opening(make: Callable[[], Tokenizer]) -> None:
    of = world(make)
    chat = MessagesInput((message("system", "Be kind."),))
    text = of.renderer.messages(chat, generation_prompt=False, parse_special=False).text
    assert text.startswith(of.renderer.opening(chat, parse_special=False))
    assert text.endswith(of.renderer.opening(chat, parse_special=False)[-len("Be kind.<|im_end|>") :])


@pytest.mark.parametrize(
    "mistake", [lambda words: words and words + 3, lambda _: None], ids=["inside a message", "at a turn's first token"]
)
def test_a_cut_at_another_place_is_noticed(
    monkeypatch: pytest.MonkeyPatch, mistake: Callable[[int | None], int | None]
) -> None:
    real = trimming._words
    monkeypatch.setattr(trimming, "_words", lambda *place: mistake(real(*place)))
    talk = Talk(world(byte_level_with_bos), "Be kind.")
    for number in range(6):
        talk.turn(f"question {number}", f"answer {number}", ended=True)
    whole = talk.of.planner.for_append(talk.ledger, talk.asked("and now?"))
    limits = bounds(len(whole.sequence), 1)
    plan = talk.of.planner.trimmed(talk.ledger, whole, limits)
    assert plan is not None
    with pytest.raises(AssertionError):
        check(talk, plan, "and now?", limits)


def test_an_answer_may_ask_for_an_eighth_of_the_context() -> None:
    assert [room_for_answer(800, tokens) for tokens in (1, 50, 5000)] == [1, 50, 100]
    assert room_for_answer(4, 9) == 1


class _Welcomed(Talk):
    """A conversation that the assistant opens."""

    def asked(self, question: str) -> Rendered:
        """As in Talk, but for the first question."""
        if self.said:
            return super().asked(question)
        opened = (*system_message(self.system), message("assistant", "Welcome!"), message("user", question))
        return self.of.renderer.messages(MessagesInput(opened), generation_prompt=True, parse_special=False)


def test_what_stays_behind_another_message_has_its_users_header() -> None:
    talk = _Welcomed(world(byte_level_with_bos, CHATML), "Be kind.")
    for number in range(4):
        talk.turn(f"question {number} " + "a b " * 20, f"answer {number} " + "c d " * 20, ended=True)
    plan = talk.of.planner.for_append(talk.ledger, talk.asked("the last question"))
    trimmed = talk.of.planner.trimmed(talk.ledger, plan, bounds(len(plan.sequence) // 4, 8))
    assert trimmed is not None
    text = talk.of.tokenizer.decode(trimmed.sequence)
    assert b"Be kind.<|im_end|>\n<|im_start|>user\nthe last question<|im_end|>" in text
