"""Where later prompts may leave this one: the checkpoints of plans."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentmem.kv.ledger import Ledger
from inference_service.domain import MessagesInput
from inference_service.text.prompt import Rendered
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.memory.planning import texts, world
from tests.inference_service.real_tokenizers import byte_level_with_bos, llama3_like, nfc, sentence_piece


@pytest.mark.parametrize("make", [byte_level_with_bos, llama3_like])
@given(system=texts, one=texts, other=texts, answer=texts)
@example(system="Be kind.", one="hi", other="\n\nhi", answer="")
@example(system="Be kind.", one="  hi", other="1", answer="")
def test_chats_with_one_system_prompt_share_its_tokens(
    make: Callable[[], Tokenizer], system: str, one: str, other: str, answer: str
) -> None:
    of = world(make)
    plans = [
        of.planner.for_text(
            Ledger(),
            of.renderer.messages(chat(system, *said), generation_prompt=True, parse_special=False),
            heal_extension=False,
        )
        for said in ([one], [other], [other, answer, one])
    ]
    (first, _), *rest = (plan.checkpoints for plan in plans)
    assert all(checkpoints[0] == first for checkpoints in rest)
    assert len({tuple(plan.sequence.tolist()[:first]) for plan in plans}) == 1


def chat(system: str, *said: str) -> MessagesInput:
    roles = ("system", "user", "assistant", "user")
    return MessagesInput(
        tuple({"role": role, "content": content} for role, content in zip(roles, (system, *said), strict=False))
    )


def test_tokens_and_raw_text_have_no_checkpoints() -> None:
    of = world(byte_level_with_bos)
    assert of.planner.for_tokens(Ledger(), (5, 6)).checkpoints == ()
    raw = of.planner.for_text(Ledger(), of.renderer.text("hi there", parse_special=False), heal_extension=True)
    assert raw.checkpoints == ()


def test_a_token_across_a_checkpoint_is_not_before_it() -> None:
    of = world(byte_level_with_bos)
    pieces = of.tokenizer.pieces(of.tokenizer.encode("the colour of", parse_special=False))
    before = pieces.index(b" colour")
    prompt = Rendered(b"the colour of", checkpoints=(0, 3, 4, 9, 10, 13))
    plan = of.planner.for_text(Ledger(), prompt, heal_extension=False)
    assert plan.checkpoints == (before, before + 1)


@given(first=texts, content=texts, generation_prompt=st.booleans())
def test_what_is_appended_counts_from_the_ledgers_beginning(first: str, content: str, generation_prompt: bool) -> None:
    of = world(byte_level_with_bos)
    ledger = of.ledger(of.renderer.text(first, parse_special=False))
    before, new = Rendered(ledger.text, tuple(of.planner.specials(ledger))), chat(content, content)
    _, addition = of.renderer.continuation(before, new, generation_prompt=generation_prompt, parse_special=False)
    plan = of.planner.for_append(ledger, addition)
    if not generation_prompt:
        assert plan.checkpoints == ()
        return
    (at,) = plan.checkpoints
    assert at > len(ledger)
    assert of.tokenizer.decode(plan.sequence.tolist()[len(ledger) : at]) == addition.text[: addition.checkpoints[0]]


@pytest.mark.parametrize("make", [nfc, sentence_piece])
def test_text_that_the_tokenizer_rewrites_has_no_checkpoints(make: Callable[[], Tokenizer]) -> None:
    of = world(make)
    prompt = Rendered("Cafe\u0301 au lait".encode(), checkpoints=(5,))
    assert of.planner.for_text(Ledger(), prompt, heal_extension=False).checkpoints == ()
    appended = of.planner.for_append(of.ledger([5]), prompt)
    assert appended.checkpoints == () or of.tokenizer.decode(appended.new_ids) == prompt.text
