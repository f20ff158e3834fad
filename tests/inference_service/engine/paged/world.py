"""Sequences in the pool's blocks, and how far what is computed of them is from the oracle."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from benchmarks.loading import load
from inference_service.engine.paged.sequence import Sequence
from inference_service.engine.paged.store import KVStore
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import computed
from tests.oracle import Oracle

Logprobs = npt.NDArray[np.float32]


class World:
    """A model, its oracle, and two sequences whose blocks lie in no order."""

    def __init__(self, directory: Path, write: Callable[[Path], Path]) -> None:
        path = write(directory / "model")
        self.model: LoadedModel = load("tiny", str(path), hashes=ContentHashes(directory / "hashes.json"))
        self.oracle = Oracle(path)
        self.store = KVStore(self.model.geometry, 16, 40, self.model.codecs)
        self.one = self.store.sequence([3, 1, 2], range(8))
        self.other = self.store.sequence([7, 5, 6], range(10, 18))
        draw = np.random.default_rng(0)
        self.tokens = {each: draw.integers(1, 32, 500).tolist() for each in (self.one, self.other)}
        self.said: dict[Sequence, list[Logprobs]] = {self.one: [], self.other: []}
        self.as_rows: defaultdict[Sequence, list[bool]] = defaultdict(list)
        """By token: True for a row among those of others."""

    def run(self, *pieces: tuple[Sequence, int]) -> None:
        """Compute the next tokens of these sequences in one pass."""
        given = [(sequence, self.tokens[sequence][sequence.length :][:n]) for sequence, n in pieces]
        logits = computed(self.model.engine.model, self.store, *given)
        logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        for (sequence, n), end in zip(pieces, np.cumsum([n for _, n in pieces]), strict=True):
            self.said[sequence].append(logprobs[end - n : end])
            self.as_rows[sequence] += [len(pieces) > 1] * n

    def error(self) -> float:
        errors = []
        for sequence, said in self.said.items():
            if sequence.length:
                wanted = self.oracle.logprobs(self.tokens[sequence][: sequence.length])
                errors.append(typical(np.concatenate(said), wanted, self.as_rows[sequence]))
        return max(errors)


def typical(found: Logprobs, wanted: Logprobs, as_rows: list[bool]) -> float:
    """The largest difference of a log-probability that three quarters of a sequence's last tokens stay below, of those
    in chunks or of those as rows. Not of all: rounding can make another code of a token's K or V, and those after it
    see that.
    """
    assert wanted.std() > 0.1
    errors, rows = np.abs(found - wanted).max(axis=1), np.array(as_rows)
    return max(float(np.quantile(errors[which][-40:], 0.75)) for which in (rows, ~rows) if which.any())
