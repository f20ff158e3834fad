"""A small random model is checked on the engine: alone, in a batch, hot, after a restart, from a partial match.

Two texts take the way of turns, each token given instead of chosen, and every log-probability is compared with that of
the whole text computed at once (`recomputing`).
"""

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx
import numpy as np

from inference_service.domain import Sampling
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.sampling import TokenSampler
from inference_service.memory.checkpoints import capture_positions
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import Reservation
from tests.model_types.configs import VOCABULARY
from tests.model_types.memory import GROWTH, AtRest, Memory, Rooms, kept
from tests.model_types.recomputing import LogProbs, Recomputed

TOLERANCE = 1e-3
"""The most by which a log-probability may differ: roundings in float32."""
OWN_TOLERANCE = 5e-3
"""The most for mlx-lm's own caches, where attention rounds otherwise, and all positions count."""
OWN = "mlx-lm"
SEEN = 0.1
"""By how much what is said must hang on what came before, or that it is equal proves nothing."""

PROMPT, ANSWER, NEXT = 300, 5, 12
"""Tokens of the first prompt, of each answer, and of the second prompt: more than a block and a window."""
SYSTEM, GENERATION = 270, 296
"""Where the first prompt's system prompt ends, and where its generation prompt begins."""
LEFT_AT = 298
"""Where a prompt leaves the text of the first."""
OTHER = 250
"""Tokens of the other text."""
_TEXTS = 6


class _GivenTokens(TokenSampler):
    def __init__(self, token_ids: Sequence[int]) -> None:
        super().__init__(Sampling())
        self._token_ids = token_ids
        self.rows: list[mx.array] = []
        """Log-probabilities before each token; one more than tokens, because the engine computes a step ahead."""

    @property
    def by_rows(self) -> bool:
        return True

    def rewind(self, token_ids: Sequence[int]) -> None:
        del self.rows[len(token_ids) :]

    def __call__(self, logprobs: mx.array) -> mx.array:
        self.rows.append(logprobs[0])
        return mx.array([self._token_ids[min(len(self.rows), len(self._token_ids)) - 1]], dtype=mx.uint32)


class _Turns:
    def __init__(self, model: LoadedModel, rooms: Rooms) -> None:
        self._model = model
        self._rooms = rooms
        self.decode_steps = 0
        model.engine.stepped = self._stepped

    def _stepped(self, phase: str) -> None:
        self.decode_steps += phase == "decode"

    def prefilled(self, token_ids: Sequence[int], checkpoints: Sequence[int] = ()) -> AtRest:
        """A text that is computed, with checkpoints at these positions."""
        room, begin = self._rooms.empty(len(token_ids) + GROWTH, len(checkpoints))
        turn = TurnJob(token_ids, begin, None, lambda _: None, threading.Event(), checkpoints=checkpoints)
        self._run([turn])
        return self._rooms.left(turn, room)

    def decoded(
        self, *texts: tuple[Sequence[int], tuple[Reservation, Callable[[], KVSequence]]]
    ) -> Iterator[tuple[LogProbs, AtRest]]:
        """Texts' last tokens, decoded together: what was expected before each, and what is at rest then.

        Each text comes with its memory, and what begins it there.
        """
        turns = []
        for token_ids, (_, begin) in texts:
            decoding = Decoding(ANSWER, sampling=Sampling(ignore_eos=True))
            turn = TurnJob(token_ids[:-ANSWER], begin, decoding, lambda _: None, threading.Event())
            turn.sampler = _GivenTokens(token_ids[-ANSWER:])
            turns.append(turn)
        self._run(turns)
        for turn, (_, (room, _)) in zip(turns, texts, strict=True):
            assert isinstance(turn.sampler, _GivenTokens)
            rows = np.array(mx.stack(turn.sampler.rows[:ANSWER]).astype(mx.float32))
            yield rows, self._rooms.left(turn, room)

    def _run(self, turns: Sequence[TurnJob]) -> None:
        for turn in turns:
            self._model.engine.add(turn)
        while self._model.engine.step():
            pass


def checked(model: LoadedModel) -> dict[str, float]:
    """By how much each way differs from computing the whole text at once.

    Where one differs, other texts are tried, and the best of each way counts: a rounding, which products by OpenBLAS
    have as the processor is, may change a choice of experts or a code of K and V, and with these what is said, but not
    in every text. Raises ValueError where a difference could not be seen, or where a way is not the one that should be
    gone, and what turns raise.
    """
    best: dict[str, float] = {}
    for seed in range(_TEXTS):
        found = _differences(model, *texts(seed))
        best = {way: min(off, best.get(way, off)) for way, off in found.items()}
        if not wrong(best):
            break
    return best


def wrong(differences: Mapping[str, float]) -> dict[str, float]:
    most = {OWN: OWN_TOLERANCE}
    return {way: off for way, off in differences.items() if not off < most.get(way, TOLERANCE)}


def texts(seed: int) -> tuple[list[int], list[int]]:
    """The tokens of both; the other's answer, and the token before it, are those of the first."""
    generator = random.Random(seed)
    lengths = PROMPT + ANSWER + NEXT + ANSWER, OTHER - ANSWER - 1
    first, second = ([generator.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths)
    return first, [*second, *first[PROMPT - 1 : PROMPT + ANSWER]]


def _differences(model: LoadedModel, first: Sequence[int], second: Sequence[int]) -> dict[str, float]:
    recomputed = Recomputed(model, first)
    whole, other = recomputed.logprobs, Recomputed(model, second).logprobs
    once = first[: PROMPT + ANSWER]
    if (seen := _off(_answer(other, second), whole, once)) < SEEN:
        raise ValueError(f"what it says hangs on what it was told by {seen:.1g}: nothing can be seen of it")
    found = {OWN: _difference(recomputed.by_mlx_lm(), whole)}
    with closing(Rooms(model)) as rooms:
        found |= _by_turns(model, rooms, first, second, whole, other)
    return found


def _by_turns(
    model: LoadedModel,
    rooms: Rooms,
    first: Sequence[int],
    second: Sequence[int],
    whole: LogProbs,
    other: LogProbs,
) -> dict[str, float]:
    turns, once = _Turns(model, rooms), first[: PROMPT + ANSWER]
    beginning = turns.prefilled(once[: PROMPT - 1], capture_positions((SYSTEM, GENERATION), PROMPT))
    other_beginning = turns.prefilled(second[: OTHER - ANSWER - 1])
    [(rows, _)] = turns.decoded((once, rooms.empty(len(once) + GROWTH)))
    found = {"alone": _off(rows, whole, once)}
    turns.decode_steps = 0
    (rows, at_rest), (other_rows, _) = turns.decoded(
        (once, rooms.going_on(beginning, len(once) + GROWTH)),
        (second, rooms.going_on(other_beginning, len(second) + GROWTH)),
    )
    together = turns.decode_steps < 2 * (ANSWER - 1)
    if together != model.engine.model.rows_together:
        raise ValueError(f"rows are decoded {'together' if together else 'alone'}, against what was proved")
    found["batched"] = max(_off(rows, whole, once), _off(other_rows, other, second))
    at_rest = replace(at_rest, captured=beginning.captured)
    with TemporaryDirectory() as directory, kept(model, rooms, once, at_rest, Path(directory)) as memory:
        for way, keep_tokens, hot in (
            ("hot", len(once), True),
            ("warm", len(once), False),
            ("partial", LEFT_AT, False),
        ):
            found[way] = _resumed(model, turns, memory, first, keep_tokens, whole, hot=hot)
    return found


def _resumed(
    model: LoadedModel,
    turns: _Turns,
    memory: Memory,
    text: Sequence[int],
    keep_tokens: int,
    whole: LogProbs,
    *,
    hot: bool,
) -> float:
    restored = memory.found(text[:-ANSWER], keep_tokens, hot=hot)
    exact = keep_tokens == LEFT_AT and model.geometry.states is not None
    if restored.tokens != (wanted := GENERATION if exact else keep_tokens):
        raise ValueError(f"{restored.tokens} tokens are reused instead of {wanted}")
    assert restored.room is not None
    [(rows, _)] = turns.decoded((text, (restored.room, restored.sequence)))
    return _off(rows, whole, text)


def _off(rows: LogProbs, whole: LogProbs, text: Sequence[int]) -> float:
    """By how much an answer's differ from those of a longer text."""
    return _difference(rows, _answer(whole, text))


def _answer(whole: LogProbs, text: Sequence[int]) -> LogProbs:
    """Return the rows of a text's last tokens."""
    return whole[len(text) - 1 - ANSWER : len(text) - 1]


def _difference(found: LogProbs, wanted: LogProbs) -> float:
    """The largest; some models rule tokens out, whose log-probability is -inf."""
    possible = np.isfinite(wanted)
    if not np.array_equal(possible, np.isfinite(found)):
        return float("inf")
    return float(np.abs(found[possible] - wanted[possible]).max())
