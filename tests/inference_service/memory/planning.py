"""Tests of plans share a tokenizer and its planner, texts, and what every plan for text must hold."""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from agentmem.kv.ledger import Ledger, common_length
from agentmem.v1.types_pb2 import (
    MATCH_DIVERGE,
    MATCH_NEW,
    MATCH_PARTIAL,
    MISS_REASON_DIVERGED,
    MISS_REASON_UNSPECIFIED,
)
from inference_service.memory.match import MatchLimits
from inference_service.memory.plan import Plan, Planner
from inference_service.text.prompt import Rendered
from inference_service.text.rendering import Renderer
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.real_tokenizers import CHATML, SPECIALS, hugging_face

ANY = MatchLimits(min_tokens=1)


@dataclass(frozen=True)
class World:
    """One tokenizer, and what plans over it are made with."""

    tokenizer: Tokenizer
    renderer: Renderer
    planner: Planner

    def ledger(self, *parts: Rendered | list[int]) -> Ledger:
        """Return the ledger after prompts and generated tokens."""
        ledger = Ledger()
        for part in parts:
            token_ids = self.renderer.encode(part) if isinstance(part, Rendered) else part
            ledger = ledger.followed_by(token_ids, self.tokenizer.pieces(token_ids), self.tokenizer.hash)
        return ledger


def world(make: Callable[[], Tokenizer], template: str = CHATML, limits: MatchLimits = ANY) -> World:
    tokenizer = make()
    renderer = Renderer(tokenizer, hugging_face(template).apply_chat_template)
    return World(tokenizer, renderer, Planner(tokenizer, renderer, limits))


def check(of: World, ledger: Ledger, prompt: Rendered, plan: Plan) -> None:
    sequence = plan.sequence.tolist()
    assert of.tokenizer.decode(sequence) == prompt.text
    assert sequence == [*ledger.token_ids[: plan.keep_tokens].tolist(), *plan.new_ids.tolist()]
    assert len(plan.new_ids)
    assert plan.checkpoints == checkpoints_by_hand(of, prompt, sequence)
    remembered = Ledger().followed_by(sequence, of.tokenizer.pieces(sequence), "")
    assert tuple(of.planner.specials(remembered)) == prompt.specials, "a look-alike is no special token, or the reverse"
    if plan.kind in (MATCH_NEW, MATCH_DIVERGE):
        assert plan.keep_tokens == 0
        assert plan.reason != MISS_REASON_UNSPECIFIED
    else:
        differs = plan.kind == MATCH_PARTIAL and not ledger.text.startswith(prompt.text)
        assert plan.reason == MISS_REASON_DIVERGED or not differs
        assert plan.reason == MISS_REASON_UNSPECIFIED or plan.kind == MATCH_PARTIAL
        shared = common_length(ledger.token_ids, plan.sequence)
        assert plan.keep_tokens == min(shared, len(plan.sequence) - 1), "not all that is there is used"


def checkpoints_by_hand(of: World, prompt: Rendered, sequence: list[int]) -> tuple[int, ...]:
    """The last position of each checkpoint's whole tokens, tried one by one."""
    places = {
        max(n for n in range(len(sequence) + 1) if len(of.tokenizer.decode(sequence[:n])) <= at)
        for at in prompt.checkpoints
    }
    return tuple(sorted(places - {0, len(sequence)}))


words = st.sampled_from(
    [
        *("the", " colour", " of", " boat", "s", "'", "'s", "'ll", " 12", "345", "  ", " ", "\n", "\t"),
        *("é", "东", "🙂", "a\u0301"),
    ]
)
texts = st.lists(st.one_of(words, st.text(max_size=3)), max_size=10).map("".join)
hostile = st.lists(st.one_of(texts, st.sampled_from([*SPECIALS, "<|im_"])), max_size=4).map("".join)


def whole_characters(text: bytes) -> str:
    return text.decode(errors="ignore")
