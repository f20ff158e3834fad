"""Who plays a conversation: the worker's planner, and what peers do with the tokens of the whole prompt. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from agentmem.kv.ledger import Ledger, Uint32, common_length
from benchmarks.prefix.conversations import Step
from benchmarks.prefix.vocabularies import Vocabulary
from inference_service.memory.match import MatchLimits
from inference_service.memory.plan import Planner
from inference_service.text.rendering import Renderer

Contestant = Callable[[Vocabulary, Renderer, Ledger, Step], tuple[int, Uint32]]
"""How many tokens of the ledger are kept for a step's prompt, and the whole sequence that the model then sees."""


def by_text(min_ratio: float) -> Contestant:
    """The worker's planner; a text that shares less than `min_ratio` of the ledger's, keeps nothing."""

    def plan(vocabulary: Vocabulary, renderer: Renderer, ledger: Ledger, step: Step) -> tuple[int, Uint32]:
        planner = Planner(vocabulary.tokenizer, renderer, MatchLimits())
        common = common_length(ledger.text, step.prompt.text)
        known = ledger if common >= min_ratio * len(ledger.text) else Ledger()
        found = planner.for_text(known, step.prompt, heal_extension=step.raw)
        return found.keep_tokens, found.sequence

    return plan


def by_tokens(
    vocabulary: Vocabulary,  # noqa: ARG001
    renderer: Renderer,
    ledger: Ledger,
    step: Step,
) -> tuple[int, Uint32]:
    """The longest common prefix of the whole prompt's tokens and the ledger's, without the prompt's last token."""
    sequence = np.array(renderer.encode(step.prompt), np.uint32)
    return min(common_length(ledger.token_ids, sequence), len(sequence) - 1), sequence


CONTESTANTS: Mapping[str, Contestant] = {"text": by_text(0.0), "text, 0.8": by_text(0.8), "tokens": by_tokens}


@dataclass(frozen=True)
class Played:
    """A conversation's turns but the first: tokens of each prompt as tokenized whole, and those that were computed.

    `sequence` is how many tokens the last prompt had for this contestant.
    """

    prompts: list[int]
    computed: list[int]
    sequence: int


def play(vocabulary: Vocabulary, steps: Iterable[Step], contestant: Contestant) -> Played:
    """Play a conversation. Each contestant has a ledger of its own: its prompts' tokens, and what was generated.

    Raises RuntimeError where the tokens that the model would see are not the prompt, or what is kept is not the ledger.
    """
    ledger, prompts, computed = Ledger(), [], []
    tokenizer = vocabulary.tokenizer
    for step in steps:
        kept, sequence = contestant(vocabulary, vocabulary.plain, ledger, step)
        if tokenizer.decode(sequence.tolist()) != step.prompt.text:
            raise RuntimeError("the tokens of a plan do not decode to the prompt")
        if common_length(sequence, ledger.token_ids) < kept or not 0 <= kept < len(sequence):
            raise RuntimeError("the tokens that a plan keeps are not those of the ledger")
        if len(ledger):
            prompts.append(len(vocabulary.plain.encode(step.prompt)))
            computed.append(len(sequence) - kept)
        remembered = [*sequence.tolist(), *step.generated]
        ledger = Ledger().followed_by(remembered, tokenizer.pieces(remembered), tokenizer.hash)
    return Played(prompts, computed, len(sequence))
