"""Dialogues as token arrays: with the real tokenizer, made in worker processes while the GPU trains."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch.utils.data import IterableDataset, get_worker_info

from benchmarks.demo_model.dialogues import Dialogue, Split, make_dialogue
from benchmarks.demo_model.tokenizer import END, PAD, START, render
from benchmarks.demo_model.variations import VARIATIONS, Variation, vary

IGNORE = -100
_PIECE = re.compile(r"<\|[a-z_]+\|>| ?[A-Za-z]+| ?[0-9]+| ?[^\s<A-Za-z0-9]+|\s")
"""Special tokens, and what the tokenizer's own pre-tokenizer splits plain English with single spaces into."""
_MOST_KNOWN = 200_000
PLAIN_SHARE = 0.3
"""Share of dialogues without a variation; of the others, each variation is in a part."""
VARIATION_SHARES: dict[Variation, float] = {"row": 0.6, "lower": 0.4, "system": 0.4, "other": 0.3}


class Encoder:
    """The tokenizer of a directory, with the ids that mark where the assistant speaks."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.start, self.end, self.pad = (self.tokenizer.token_to_id(token) for token in (START, END, PAD))
        (self.assistant,) = self.tokenizer.encode("assistant").ids
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Token ids of the world's text, at five times the tokenizer's speed."""
        ids: list[int] = []
        for piece in _PIECE.findall(text):
            known = self._known.get(piece)
            if known is None:
                known = self.tokenizer.encode(piece).ids
                if len(self._known) < _MOST_KNOWN:
                    self._known[piece] = known
            ids += known
        return ids

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def dialogue(self, seed: int, length: int, variations: tuple[Variation, ...], split: Split) -> Dialogue:
        """Return a dialogue of at most `length` tokens with these variations, or a plain one if there are none."""
        if not variations:
            return make_dialogue(seed, length, split=split)
        return vary(seed, length, variations, self.count, split)

    def rows(self, texts: list[str], length: int) -> NDArray[np.int64]:
        """Token ids [texts, length], padded at the right. Raises ValueError."""
        rows = np.full((len(texts), length), self.pad, dtype=np.int64)
        for row, text in zip(rows, texts, strict=True):
            ids = self.encode(text)
            row[: len(ids)] = ids
        return rows

    def spoken(self, row: NDArray[np.int64]) -> NDArray[np.bool_]:
        positions = np.arange(len(row))
        last_start = np.maximum.accumulate(np.where(row == self.start, positions, 0))
        role = row[np.minimum(last_start + 1, len(row) - 1)]
        after_end = np.concatenate(([False], row[:-1] == self.end))
        spoken: NDArray[np.bool_] = (
            (role == self.assistant) & (positions - last_start >= 3) & ~after_end & (row != self.pad)
        )
        return spoken


def other_text(encoder: Encoder) -> torch.Tensor:
    """Return about 2 million tokens of Python's own library, which tells nothing of the world."""
    sources = sorted(Path(os.__file__).parent.glob("*.py"))[:120]
    texts = [source.read_text(errors="replace") for source in sources]
    return torch.tensor([token for text in encoder.tokenizer.encode_batch(texts) for token in text.ids])


class TrainingBatches(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Endless (tokens, targets) batches [rows, length]. `stage`, an index into `lengths`, is moved by the training
    loop; `shorter_share` of the batches are of shorter lengths, so that these are not forgotten."""

    def __init__(
        self,
        directory: Path,
        lengths: tuple[int, ...],
        tokens_per_step: int,
        stage: Synchronized[int],
        shorter_share: float,
        first_seed: int,
    ) -> None:
        self.directory = directory
        self.lengths = lengths
        self.tokens_per_step = tokens_per_step
        self.stage = stage
        self.shorter_share = shorter_share
        self.first_seed = first_seed

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        encoder = Encoder(self.directory)
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        seed = self.first_seed + worker
        choices = random.Random(seed)
        while True:
            stage = self.stage.value
            if stage and choices.random() < self.shorter_share:
                stage = choices.randrange(stage)
            length = self.lengths[stage]
            texts = []
            for _ in range(max(1, self.tokens_per_step // length)):
                drawn = [name for name in VARIATIONS if choices.random() < VARIATION_SHARES[name]]
                variations = () if choices.random() < PLAIN_SHARE else tuple(drawn)
                texts.append(render(encoder.dialogue(seed, length, variations, "train").messages))
                seed += workers
            rows = encoder.rows(texts, length)
            targets = np.where(np.stack([encoder.spoken(row) for row in rows]), rows, IGNORE)
            targets = np.concatenate((targets[:, 1:], np.full((len(rows), 1), IGNORE)), axis=1)
            yield torch.from_numpy(rows), torch.from_numpy(targets)
