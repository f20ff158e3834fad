"""Score a demo model on held-out dialogues: of what it was told and what it was never told, how much does it get right?

    python -m benchmarks.demo_model.evaluate inference_service/demo_model [--output benchmarks/demo_model/results.json]

An answer counts when every token of it, the end token included, is the model's first choice.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from benchmarks.demo_model.batches import Encoder
from benchmarks.demo_model.dialogues import Dialogue
from benchmarks.demo_model.model import Llama, load
from benchmarks.demo_model.tokenizer import render, write_json
from benchmarks.demo_model.variations import VARIATIONS, Variation
from benchmarks.demo_model.world import KINDS

LENGTHS = (128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192)
VARIED: tuple[tuple[Variation, ...], ...] = (*((name,) for name in VARIATIONS), VARIATIONS)
FIRST_SEED = 1_000_000
TOKENS_AT_ONCE = 32768


class Score:
    """Right answers out of all, by kind of fact, for what was told and what was not."""

    def __init__(self) -> None:
        self.right: dict[tuple[bool, str], int] = defaultdict(int)
        self.asked: dict[tuple[bool, str], int] = defaultdict(int)

    def add(self, known: bool, kind: str, right: bool) -> None:
        self.asked[known, kind] += 1
        self.right[known, kind] += right

    def share(self, known: bool | None = None, kind: str | None = None) -> float:
        """The share that is right, of all or of some."""
        keys = [key for key in self.asked if known in (None, key[0]) and kind in (None, key[1])]
        return sum(self.right[key] for key in keys) / max(1, sum(self.asked[key] for key in keys))

    def figures(self) -> dict[str, object]:
        told, untold = (sum(count for key, count in self.asked.items() if key[0] is known) for known in (True, False))
        return {
            "recall": round(self.share(True), 4),
            "never_told": round(self.share(False), 4),
            "questions_told": told,
            "questions_never_told": untold,
            "recall_by_kind": {kind.name: round(self.share(True, kind.name), 4) for kind in KINDS},
            "never_told_by_kind": {kind.name: round(self.share(False, kind.name), 4) for kind in KINDS},
        }


def held_out(
    encoder: Encoder, length: int, questions: int, first_seed: int = FIRST_SEED, variations: tuple[Variation, ...] = ()
) -> list[Dialogue]:
    """Held-out dialogues of that length with at least so many questions together."""
    dialogues: list[Dialogue] = []
    while sum(len(dialogue.questions) for dialogue in dialogues) < questions:
        dialogues.append(encoder.dialogue(first_seed + len(dialogues), length, variations, "heldout"))
    return dialogues


@torch.no_grad()
def score(model: Llama, encoder: Encoder, dialogues: list[Dialogue], length: int, bf16: bool = False) -> Score:
    """Score dialogues of at most `length` tokens on the model's device, in float32 unless `bf16`."""
    device = next(model.parameters()).device
    result = Score()
    rows_at_once = max(1, TOKENS_AT_ONCE // length)
    for start in range(0, len(dialogues), rows_at_once):
        batch = dialogues[start : start + rows_at_once]
        rows = encoder.rows([render(dialogue.messages) for dialogue in batch], length)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            hidden = model(torch.from_numpy(rows).to(device))
            choices = torch.cat([model.logits(row).argmax(-1)[None] for row in hidden]).cpu().numpy()
        for dialogue, row, chosen in zip(batch, rows, choices, strict=True):
            spoken = encoder.spoken(row)
            agrees = np.concatenate(([True], chosen[:-1] == row[1:])) | ~spoken
            starts = np.flatnonzero(spoken & ~np.concatenate(([False], spoken[:-1])))
            replies = [index for index, message in enumerate(dialogue.messages) if message["role"] == "assistant"]
            spans = dict(zip(replies, starts, strict=True))
            for question in dialogue.questions:
                first = spans[question.index + 1]
                end = first + int(np.argmax(row[first:] == encoder.end))
                result.add(question.known, question.kind, bool(agrees[first : end + 1].all()))
    return result


def environment() -> dict[str, str]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    versions = {name: importlib.metadata.version(name) for name in ("torch", "tokenizers", "safetensors")}
    return {"device": device, "python": platform.python_version(), **versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--questions", type=int, default=2000, help="at least so many for each length")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="of the dialogues")
    parser.add_argument("--kv-bits", type=int, help="quantize keys and values to so many bits (default: no)")
    parser.add_argument(
        "--varied", action="store_true", help="score each variation and all together, not plain dialogues"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, encoder = load(options.directory).to(device).eval(), Encoder(options.directory)
    model.quantize_kv(options.kv_bits)

    def by_length(variations: tuple[Variation, ...] = ()) -> dict[str, dict[str, object]]:
        scored = {}
        for length in options.lengths:
            dialogues = held_out(encoder, length, options.questions, options.first_seed, variations)
            scored[str(length)] = score(model, encoder, dialogues, length).figures()
            print(*variations, length, json.dumps(scored[str(length)]), flush=True)
        return scored

    results: dict[str, object] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python -m benchmarks.demo_model.evaluate " + " ".join(sys.argv[1:]),
        "environment": environment(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "kv_bits": options.kv_bits,
        "dtype": "float32 computation, bfloat16 weights",
    }
    if options.varied:
        results["by_variation"] = {" ".join(variations): by_length(variations) for variations in VARIED}
    else:
        results["by_length"] = by_length()
    training = options.directory / "training.json"
    if training.exists():
        results["training"] = json.loads(training.read_text())
    if options.output:
        write_json(options.output, results)


if __name__ == "__main__":
    main()
