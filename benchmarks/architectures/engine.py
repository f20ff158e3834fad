"""Texts as turns of the engine, each token given instead of chosen, and the log-probabilities that it came to.

With quantized KV a text takes the way of an agent: its beginning is prefilled by the batch engine in its chunks into
blocks of the pool, is at rest there, and the rest is decoded in passes with the other texts. Without, the same tokens
go through the same network over mlx-lm's plain caches. One thread.
"""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from agentmem.kv.blockfile import BLOCK_TOKENS
from benchmarks.architectures.texts import Text
from inference_service.domain import Sampling
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.paged.store import KVStore
from inference_service.engine.sampling import TokenSampler
from inference_service.models.loaded import LoadedModel

LogProbs = NDArray[np.float32]
"""[tokens - 1, vocabulary]: what was expected at each position of a text but the first."""
_CHUNK = 2048


class Recorder:
    """Stands in for an engine's network, and keeps the logits that the engine throws away."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._step: mx.array = mx.zeros((0, 1, 1))
        self._row = 0
        self.rows_together: bool = network.rows_together
        self.rides = False
        """A step has one token of each text, so that a row is one text's."""
        self.prefill: list[mx.array] | None = None
        """Logits [tokens, vocabulary] of chunks, while this is a list."""

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        logits: mx.array = self._network(tokens, cache=cache)
        if self.prefill is not None:
            mx.eval(logits)
            self.prefill.append(logits[0])
        self._step, self._row = logits, 0
        return logits

    def next_row(self) -> mx.array:
        """Logits [vocabulary] of the step's next row: samplers are called row by row, once for each."""
        self._row += 1
        return self._step[self._row - 1, -1]


class GivenTokens(TokenSampler):
    """A turn's sampler that chooses the tokens given, whatever is likely. Engine thread."""

    def __init__(self, recorder: Recorder, token_ids: Sequence[int]) -> None:
        super().__init__(Sampling())
        self._recorder = recorder
        self._token_ids = token_ids
        self.rows: list[mx.array] = []
        """Logits before each token; one more than tokens, because the engine computes a step ahead."""

    @property
    def by_rows(self) -> bool:
        return True

    def rewind(self, token_ids: Sequence[int]) -> None:
        del self.rows[len(token_ids) :]

    def __call__(self, logprobs: mx.array) -> mx.array:
        row = self._recorder.next_row()
        here = len(self.rows) > 1 or mx.allclose(row - mx.logsumexp(row), logprobs[0], atol=0.5).item()
        if logprobs.shape[0] != 1 or not here:
            raise RuntimeError("the engine calls samplers in another order than its rows are in: mend Recorder")
        self.rows.append(row)
        return mx.array([self._token_ids[min(len(self.rows), len(self._token_ids)) - 1]], dtype=mx.uint32)


@contextmanager
def _recording(model: LoadedModel) -> Iterator[Recorder]:
    engine, store = model.engine, model.arenas
    network, traces = engine.model, store.traces
    engine.model = recorder = Recorder(network)
    store.traces = None  # They do without the network.
    try:
        yield recorder
    finally:
        engine.model, store.traces = network, traces


def quantized(model: LoadedModel, texts: Sequence[Text]) -> list[LogProbs]:
    """All texts over the model's quantized KV, decoded together. Raises what a turn raises."""
    with _recording(model) as recorder:
        pool = _Pool(model)
        beginnings = [_prefill(model, recorder, text, pool.place(len(text.token_ids))) for text in texts]
        parked = [kept for kept, _ in beginnings]
        turns = []
        for text, kept in zip(texts, parked, strict=True):
            rest = text.token_ids[text.split + 1 :]
            decoding = Decoding(len(rest), sampling=Sampling(ignore_eos=True))
            turn = TurnJob(text.token_ids[: text.split + 1], kept.begin, decoding, lambda _: None, threading.Event())
            turn.sampler = GivenTokens(recorder, rest)
            model.engine.add(turn)
            turns.append(turn)
        while model.engine.step():
            pass
    found = []
    for text, turn, (_, prefilled) in zip(texts, turns, beginnings, strict=True):
        _, generated = turn.future.result()
        if generated.token_ids != text.token_ids[text.split + 1 :]:
            raise RuntimeError("a turn did not take the tokens that it was given")
        assert isinstance(turn.sampler, GivenTokens)
        rows = turn.sampler.rows[: len(generated.token_ids)]
        found.append(np.concatenate([prefilled, _log_probs(mx.stack(rows))]))
    return found


class _Place(NamedTuple):
    """Where a text is: blocks for all of it, pieces to compute its beginning with, and those for the rest."""

    blocks: list[int]
    pieces: list[int]
    more_pieces: list[int]


class _Parked(NamedTuple):
    """The beginning of a text in blocks of the pool."""

    store: KVStore
    start: Start

    def begin(self) -> KVSequence:
        """As a turn that finds it hot goes on."""
        return self.store.started(self.start)


def _prefill(model: LoadedModel, recorder: Recorder, text: Text, place: _Place) -> tuple[_Parked, LogProbs]:
    """The beginning as a turn that says nothing, and what was expected in it."""
    recorder.prefill, store = [], model.arenas
    begin = partial(store.sequence, place.blocks, place.pieces)
    turn = TurnJob(text.token_ids[: text.split], begin, None, lambda _: None, threading.Event())
    model.engine.add(turn)
    while model.engine.step():
        pass
    kv, _ = turn.future.result()
    assert kv is not None
    logits, recorder.prefill = mx.concatenate(recorder.prefill), None
    start = Start(place.blocks, place.more_pieces, kv.length, checkpoint=store.checkpoints.capture(kv, last=True))
    return _Parked(store, start), _log_probs(logits)


class _Pool:
    """The model's own pool; blocks are given out in no order."""

    def __init__(self, model: LoadedModel) -> None:
        space = model.memory.sizes.space
        self._pieces_of_one = model.geometry.checkpoint_pieces
        self._blocks, self._pieces = list(range(space.blocks)), list(range(space.pieces))
        random.Random(0).shuffle(self._blocks)
        random.Random(0).shuffle(self._pieces)

    def place(self, tokens: int) -> _Place:
        """Take a place. Raises IndexError where the pool is too small."""
        blocks = [self._blocks.pop() for _ in range(-(-tokens // BLOCK_TOKENS))]
        pieces = [self._pieces.pop() for _ in range(3 * self._pieces_of_one)]
        return _Place(blocks, pieces[self._pieces_of_one :], pieces[: self._pieces_of_one])


def unquantized(model: LoadedModel, texts: Sequence[Text]) -> list[LogProbs]:
    """The same tokens of each text alone over mlx-lm's plain caches: the beginning in chunks, the rest one by one."""
    network: Any = model.engine.model
    found = []
    for text in texts:
        caches = network.own_caches()
        logits = []
        starts = [*range(0, text.split, _CHUNK), *range(text.split, len(text.token_ids) - 1)]
        for start, end in zip(starts, [*starts[1:], len(text.token_ids) - 1], strict=True):
            piece = network(mx.array([text.token_ids[start:end]]), cache=caches)[0]
            mx.eval(piece, [cache.state for cache in caches])
            logits.append(piece)
        found.append(_log_probs(mx.concatenate(logits)))
    return found


def _log_probs(logits: mx.array) -> LogProbs:
    """Of logits [rows, vocabulary], in float32."""
    return np.array(nn.log_softmax(logits.astype(mx.float32), axis=-1))
