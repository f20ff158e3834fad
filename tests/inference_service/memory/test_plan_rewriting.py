"""Plans with tokenizers that rewrite text."""

import unicodedata

from hypothesis import example, given

from agentmem.v1.types_pb2 import MATCH_DIVERGE, MATCH_EXACT, MATCH_EXTEND
from inference_service.memory.match import MatchLimits
from tests.inference_service.memory.planning import texts, world
from tests.inference_service.real_tokenizers import nfc, sentence_piece


@given(first=texts, second=texts.filter(bool))
@example(first="e", second="\u0301")
@example(first="Cafe\u0301 au lait", second=" s'il vous plai\u0302t")
def test_normalizing_tokenizer_loses_nothing(first: str, second: str) -> None:
    of = world(nfc)
    ledger = of.ledger(of.renderer.text(first, parse_special=False))
    prompt = of.renderer.text(first + second, parse_special=False)
    plan = of.planner.for_text(ledger, prompt, heal_extension=True)
    decoded = of.tokenizer.decode(plan.sequence.tolist()).decode()
    assert unicodedata.normalize("NFC", decoded) == unicodedata.normalize("NFC", first + second)
    assert plan.sequence.tolist()[: plan.keep_tokens] == ledger.token_ids.tolist()[: plan.keep_tokens]
    assert len(plan.new_ids)


@given(first=texts, second=texts.filter(bool))
def test_sentence_piece_is_whole_tokenization_always(first: str, second: str) -> None:
    of = world(sentence_piece)
    ledger = of.ledger(of.renderer.text(first, parse_special=False))
    prompt = of.renderer.text(first + second, parse_special=False)
    plan = of.planner.for_text(ledger, prompt, heal_extension=True)
    assert plan.sequence.tolist() == of.renderer.encode(prompt)
    assert plan.sequence.tolist()[: plan.keep_tokens] == ledger.token_ids.tolist()[: plan.keep_tokens]
    assert len(plan.new_ids)


def test_sentence_piece_says_what_it_keeps() -> None:
    of = world(sentence_piece, limits=MatchLimits(min_tokens=3))
    first = "The colour of the boat is green"
    ledger = of.ledger(of.renderer.text(first, parse_special=False))
    longer = of.planner.for_text(ledger, of.renderer.text(f"{first}🙂", parse_special=False), heal_extension=True)
    assert (longer.kind, longer.keep_tokens) == (MATCH_EXTEND, len(ledger))
    same = of.planner.for_text(ledger, of.renderer.text(first, parse_special=False), heal_extension=True)
    assert (same.kind, same.keep_tokens) == (MATCH_EXACT, len(ledger) - 1)
    other = of.planner.for_text(ledger, of.renderer.text("Nobody knows", parse_special=False), heal_extension=True)
    assert (other.kind, other.keep_tokens) == (MATCH_DIVERGE, 0)
