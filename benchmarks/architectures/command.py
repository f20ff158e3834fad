"""Recall with 4-bit and 8-bit KV in small models of each architecture, through the engine, beside unquantized KV.

    agentmem bench architectures [--models DIRECTORY]

Held-out dialogues of the demo model's world, 256 to 8192 tokens, none longer than a model was trained on: the beginning
is prefilled, parked in the pool and taken back, the rest decoded token by token in a batch, each token given. It is
compared with mlx-lm's plain caches over the same tokens. These models are certain of what they learned, so that they
show whether facts are kept in every kind of layer; what quantization costs in perplexity a real language model shows
(`agentmem bench quality`). The demo model (Llama) always runs. Other architectures are trained by the demo model's
recipe, minutes each on one GPU, and given as directories in DIRECTORY:

    python -m benchmarks.demo_model.train DIRECTORY/gemma3_text --architecture gemma3_text --longest 4096 --minutes 9
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import options, results
from benchmarks.architectures.models import measured
from benchmarks.architectures.report import tables
from benchmarks.models import DEMO
from benchmarks.tables import show

COUNTS = {256: 20, 512: 10, 1024: 5, 2048: 3, 4096: 2, 8192: 1}

__all__ = ["main", "tables"]


def count_of(text: str) -> tuple[int, int]:
    """Of "LENGTH:COUNT". Raises ArgumentTypeError."""
    try:
        length, count = (int(part) for part in text.split(":"))
    except ValueError:
        length, count = 0, 0
    if length < 256 or count < 1:
        raise argparse.ArgumentTypeError("give LENGTH:COUNT, a length of at least 256 tokens and a count of at least 1")
    return length, count


def models_in(text: str) -> dict[str, Path]:
    """Every directory in this one that holds a model. Raises ArgumentTypeError where none does."""
    found = {path.parent.name: path.parent for path in sorted(Path(text).glob("*/config.json"))}
    if not found:
        raise argparse.ArgumentTypeError(f"no directory in {text} has a config.json; train one as --help says")
    return found


def main(arguments: argparse.Namespace) -> int:
    """Measure, print, written after each model; the exit status."""
    output = arguments.output or f"architectures-{results.backend()}"
    figures: dict[str, dict[str, object]] = {"models": {}}
    with tempfile.TemporaryDirectory() as work:
        for each, directory in {"llama (demo)": DEMO, **arguments.models}.items():
            found = measured(directory, Path(work), dict(arguments.dialogues), arguments.decoded)
            figures["models"][each] = found
            show(tables({"models": {each: found}}))
            results.write(output, figures)
    return results.conclude(output, figures, tables(figures))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument(
        "--models", type=models_in, default={}, help="a directory with a directory for each further model"
    )
    found.add_argument(
        "--dialogues",
        type=count_of,
        nargs="+",
        default=list(COUNTS.items()),
        metavar="LENGTH:COUNT",
        help=f"how many dialogues of which length in tokens (default: {shown(COUNTS)})",
    )
    found.add_argument("--decoded", type=options.at_least(64), default=96, help="tokens decoded of each")
    found.add_argument("--output", help="name of the file under benchmarks/results (default: architectures-BACKEND)")
    return found


def shown(counts: dict[int, int]) -> str:
    """As the command line has them."""
    return " ".join(f"{length}:{count}" for length, count in counts.items())


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
