"""When do 4-bit keys ruin a model, and does the check at load see it? The table of `inference_service.engine.quality`.

    agentmem bench key-outliers [--biases 0 10 25 50 100 200]

The demo model gets a bias on the slowest channel of RoPE in each layer's first key head. Over a context that turns this
channel little, it adds the same to all scores of a query, which softmax does not see; quantized, it takes the group's
whole scale. Perplexity and recall are over the assistant's words in held-out dialogues.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from benchmarks.demo_model.dialogues import Dialogue, make_dialogue
from benchmarks.demo_model.tokenizer import END, START, render
from benchmarks.loading import load
from benchmarks.models import DEMO
from inference_service.engine.quality import divergences, sample
from inference_service.engine.quantization import KVFormat
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loading import LoadedModel
from inference_service.text.tokenizer import Tokenizer

FIRST_SEED = 1_000_000
CHANNEL = 31


class Figures(NamedTuple):
    """Perplexity of the assistant's words, and the share of questions answered right."""

    perplexity: float
    recall: float


def biased(network: Any, bias: float) -> None:
    """Give one key channel of each layer a bias."""
    for layer in network.layers:
        projection = layer.self_attn.k_proj
        projection.bias = mx.zeros((projection.weight.shape[0],))
        projection.bias[CHANNEL] = bias


def spoken(tokenizer: Tokenizer, dialogue: Dialogue) -> tuple[list[int], list[tuple[int, int, bool]]]:
    """The dialogue's tokens, and where each answer begins and ends, and whether it answers a question."""

    def tokens(text: str) -> list[int]:
        return tokenizer.encode(text, parse_special=True)

    asked = {question.index + 1 for question in dialogue.questions}
    spans = []
    for i, message in enumerate(dialogue.messages):
        if message["role"] == "assistant":
            before = render(dialogue.messages[:i]) + f"{START}assistant\n"
            spans.append((len(tokens(before)), len(tokens(before + message["content"] + END)), i in asked))
    return tokens(render(dialogue.messages)), spans


def figures(network: Any, tokenizer: Tokenizer, dialogues: list[Dialogue], caches: Any) -> Figures:
    """Over all dialogues; `caches` makes those of one."""
    loss, words, right = 0.0, 0, []
    for dialogue in dialogues:
        token_ids, spans = spoken(tokenizer, dialogue)
        log_p = np.array(nn.log_softmax(network(mx.array([token_ids]), cache=caches())[0].astype(mx.float32), axis=-1))
        for start, end, is_answer in spans:
            wanted, given = np.array(token_ids[start:end]), log_p[start - 1 : end - 1]
            loss -= float(given[np.arange(len(wanted)), wanted].sum())
            words += len(wanted)
            if is_answer:
                right.append(bool((given.argmax(-1) == wanted).all()))
    return Figures(float(np.exp(loss / words)), float(np.mean(right)))


def loaded(directory: Path) -> LoadedModel:
    """The demo model with little memory for KV."""
    hashes = ContentHashes(directory / "weights.json")
    return load("demo", str(DEMO), hashes=hashes, dtype="float32", pool_bytes=1 << 26, batch_bytes=1 << 27)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--biases", type=float, nargs="+", default=[0, 10, 25, 50, 100, 200])
    parser.add_argument("--dialogues", type=int, default=8)
    options = parser.parse_args()
    dialogues = [make_dialogue(FIRST_SEED + i, 512) for i in range(options.dialogues)]
    with tempfile.TemporaryDirectory() as directory:
        model = loaded(Path(directory))
    network: Any = model.engine.model
    print("bias   KL 4 bits: 128, 256 tokens   8 bits: 128   perplexity 16, 4, 8 bits   recall 16, 4, 8 bits")
    for bias in options.biases:
        biased(network, bias)
        token_ids = sample(model.tokenizer, 256)
        with_four, with_eight = KVFormat(4, 4), KVFormat(8, 8)
        four, eight = divergences(network, token_ids[:128], model.geometry, (with_four, with_eight))
        longer = divergences(network, token_ids, model.geometry, (with_four,))[0]
        of_all = [
            figures(network, model.tokenizer, dialogues, caches)
            for caches in (
                lambda: make_prompt_cache(network),
                replace(model.geometry, format=with_four).new_caches,
                replace(model.geometry, format=with_eight).new_caches,
            )
        ]
        perplexities = " ".join(f"{each.perplexity:.4f}" for each in of_all)
        recalls = " ".join(f"{each.recall:.3f}" for each in of_all)
        print(f"{bias:4.0f}   {four:.3f} {longer:.3f}   {eight:.4f}   {perplexities}   {recalls}", flush=True)


if __name__ == "__main__":
    main()
