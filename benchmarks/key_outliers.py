"""What key outliers cost a model with 4-bit KV, plain and as we keep it, and whether the check at load sees it.

    agentmem bench key-outliers [--biases 0 10 25 50 100 200]

The demo model gets a bias on the slowest channel of RoPE in each layer's first key head. Over a context that turns this
channel little, it adds the same to all scores of a query, which softmax does not see; quantized as it is, it takes the
group's whole scale. Perplexity and recall are over the assistant's words in held-out dialogues, with 4 bits plain and
as we keep them, and with the bits that the check recommends for the model.

Exit status 1 if a model lost recall with those.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from benchmarks import options, results
from benchmarks.demo_model.dialogues import Dialogue, make_dialogue
from benchmarks.demo_model.tokenizer import END, START, render
from benchmarks.loading import load
from benchmarks.models import DEMO
from benchmarks.tables import Table
from inference_service.engine import quality
from inference_service.engine.calibrating import TOKENS, calibrate
from inference_service.engine.quality import measure, other_text
from inference_service.engine.quantization import PLAIN, ROTATED, KVFormat
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.text.tokenizer import Tokenizer

FIRST_SEED = 1_000_000
CHANNEL = 31
BIASES = (0.0, 10.0, 25.0, 50.0, 100.0, 200.0)
LENGTH = 512
"""Tokens of a dialogue."""
UNQUANTIZED, PLAIN_4, OURS_4, RECOMMENDED = "unquantized", "plain 4", "4", "recommended"


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


def figures(
    network: Any, tokenizer: Tokenizer, dialogues: Sequence[Dialogue], caches: Callable[[], list[Any]]
) -> Figures:
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


def measured(model: LoadedModel, biases: Sequence[float], dialogues: Sequence[Dialogue]) -> Iterator[dict[str, Any]]:
    """One row for each bias: what the check says of both schemes, and what the dialogues say of four kinds of KV.

    The biased model is another model, and has means of its own.
    """
    network: Any = model.engine.model
    ours, plain = (
        replace(model.geometry, format=KVFormat(4, 4, model.geometry.format.group_size, scheme))
        for scheme in (ROTATED, PLAIN)
    )
    for bias in biases:
        biased(network.model, bias)
        calibration = calibrate(network, other_text(model.tokenizer, TOKENS), ours)
        said = measure(network, model.tokenizer, ours, quality.TOKENS, calibration)
        of_plain = measure(network, model.tokenizer, plain, quality.TOKENS)
        recommended = said.recommended or "8"
        best = replace(ours, format=ours.format.with_bits(recommended))
        kinds: dict[str, Callable[[], list[Any]]] = {
            UNQUANTIZED: network.own_caches,
            PLAIN_4: plain.new_caches,
            OURS_4: partial(ours.new_caches, calibration.codecs(ours)),
            RECOMMENDED: partial(best.new_caches, calibration.codecs(best)),
        }
        yield {
            "bias": bias,
            "check": {PLAIN_4: of_plain.divergences["4"].mean, OURS_4: said.divergences["4"].mean},
            "recommended": recommended,
            "found": {
                name: figures(network, model.tokenizer, dialogues, caches)._asdict() for name, caches in kinds.items()
            },
        }


def tables(figures: dict[str, Any]) -> list[Table]:
    """A row for each bias."""
    rows = [
        [
            f"{row['bias']:g}",
            *(f"{row['check'][name]:.2g}" for name in (PLAIN_4, OURS_4)),
            row["recommended"],
            *(f"{of['perplexity']:.4f}, {of['recall'] * 100:.0f} %" for of in row["found"].values()),
        ]
        for row in figures["rows"]
    ]
    columns = ("bias", "KL plain 4", "KL 4", "recommended", "unquantized", "plain 4", "4", "with what is recommended")
    note = (
        "KL divergence in nats by the check at load, with plain and with our 4 bits, and the bits that it recommends "
        f"for ours; then perplexity and recall of {figures['dialogues']} dialogues of {LENGTH} tokens. The bias grows "
        "with the outlier of the keys; without quantization it changes nothing."
    )
    return [Table("Models with a key outlier", columns, rows, note)]


def main(arguments: argparse.Namespace) -> int:
    """Measure, print, written after each bias; the exit status."""
    dialogues = [make_dialogue(FIRST_SEED + i, LENGTH) for i in range(arguments.dialogues)]
    output = arguments.output or f"key-outliers-demo-{results.backend()}"
    found: dict[str, Any] = {"dialogues": len(dialogues), "rows": []}
    with tempfile.TemporaryDirectory() as directory:
        model = loaded(Path(directory))
        for row in measured(model, arguments.biases, dialogues):
            found["rows"].append(row)
            results.write(output, found)
    return results.conclude(output, found, tables(found))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--biases", type=float, nargs="+", default=list(BIASES), help="by default 0 to 200")
    found.add_argument("--dialogues", type=options.at_least(1), default=8, help="how many (default: %(default)s)")
    found.add_argument(
        "--output", help="name of the file under benchmarks/results (default: key-outliers-demo-BACKEND)"
    )
    return found


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
