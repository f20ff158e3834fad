"""Dialogues as token arrays: with the real tokenizer, made in worker processes while the GPU trains."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch.utils.data import IterableDataset, get_worker_info

from benchmarks.demo_model.dialogues import make_dialogue
from benchmarks.demo_model.tokenizer import END, PAD, START, render

IGNORE = -100
_PIECE = re.compile(r"<\|[a-z_]+\|>| ?[A-Za-z]+| ?[0-9]+| ?[^\s<A-Za-z0-9]+|\s")
"""Special tokens, and what the tokenizer's own pre-tokenizer splits plain English with single spaces into."""
SHORTER_SHARE = 0.4
"""Share of batches of shorter lengths, so that these are not forgotten."""


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
                known = self._known[piece] = self.tokenizer.encode(piece).ids
            ids += known
        return ids

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


class TrainingBatches(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Endless (tokens, targets) batches [rows, length]. `stage`, an index into `lengths`, is moved by the training
    loop."""

    def __init__(self, directory: Path, lengths: tuple[int, ...], tokens_per_step: int, stage: Synchronized[int]):
        self.directory = directory
        self.lengths = lengths
        self.tokens_per_step = tokens_per_step
        self.stage = stage

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        encoder = Encoder(self.directory)
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        seed = worker
        choices = np.random.default_rng(worker)
        while True:
            stage = self.stage.value
            if stage and choices.random() < SHORTER_SHARE:
                stage = int(choices.integers(stage))
            length = self.lengths[stage]
            texts = []
            for _ in range(max(1, self.tokens_per_step // length)):
                texts.append(render(make_dialogue(seed, length, split="train").messages))
                seed += workers
            rows = encoder.rows(texts, length)
            targets = np.where(np.stack([encoder.spoken(row) for row in rows]), rows, IGNORE)
            targets = np.concatenate((targets[:, 1:], np.full((len(rows), 1), IGNORE)), axis=1)
            yield torch.from_numpy(rows), torch.from_numpy(targets)
