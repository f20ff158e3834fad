"""Turns on a model's batch engine, and whether what they were told is right."""

import threading
from dataclasses import dataclass, field

import numpy as np

from inference_service.domain import Sampling, TokenEvent
from inference_service.engine.generation import Decoding, Generated, TurnJob
from inference_service.engine.geometry import Caches
from inference_service.models.loaded import LoadedModel
from tests.oracle import Oracle

TEXT = "The boat by the sea, ü€😀 nobody knows. "


@dataclass
class Turn:
    """A turn and what it was told."""

    job: TurnJob
    events: list[TokenEvent] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def generated(self) -> Generated:
        return self.job.future.result(0)[1]


def begin(
    model: LoadedModel,
    prompt: list[int],
    tokens: int | None = 12,
    sampling: Sampling | None = None,
    warm: Caches | None = None,
) -> Turn:
    turn = Turn(None)  # type: ignore[arg-type] - the job needs the lists that the turn holds
    sampling = sampling or Sampling(ignore_eos=True)
    decoding = None if tokens is None else Decoding(tokens, sampling=sampling, top_logprobs=0)
    make = (lambda: warm) if warm else model.new_caches
    reused = warm[0].offset if warm else 0
    turn.job = TurnJob(prompt, make, decoding, turn.events.append, turn.cancelled, reused=reused)
    model.engine.add(turn.job)
    return turn


def prompt_of(model: LoadedModel, number: int, repeats: int) -> list[int]:
    return model.tokenizer.encode(f"{number} " + TEXT * repeats, parse_special=False)


def run(model: LoadedModel, ticks: int = 10_000) -> int:
    """Tick until nothing is left; how many ticks it took."""
    for step in range(ticks):
        if not model.engine.step():
            return step + 1
    raise AssertionError("the engine does not come to an end")


def right(oracle: Oracle, turn: Turn) -> bool:
    sequence = turn.job.sequence
    wanted = oracle.logprobs_of([*sequence, *(e.token_id for e in turn.events)], len(sequence))
    return bool(np.abs(wanted - np.array([e.logprob for e in turn.events])).max() < 1e-3)
