"""Mix the weights of a model with those it was trained from: `share` of the one and the rest of the other.

    python -m benchmarks.demo_model.mix /tmp/demo_model inference_service/demo_model /tmp/mixed --share 0.9

Continued training forgets a little of what the earlier weights know; a mean of both has most of both (Wortsman et al.,
"Robust fine-tuning of zero-shot models", 2022).
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch

from benchmarks.demo_model.model import load, save
from benchmarks.demo_model.tokenizer import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("continued", type=Path)
    parser.add_argument("start", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--share", type=float, default=0.9, help="of the continued training's weights")
    options = parser.parse_args()
    model, start = load(options.continued), load(options.start)
    with torch.no_grad():
        for parameter, other in zip(model.parameters(), start.parameters(), strict=True):
            parameter.lerp_(other, 1 - options.share)
    shutil.copytree(options.start, options.output, dirs_exist_ok=True)
    save(model, options.output)
    training = options.continued / "training.json"
    if training.exists():
        facts = json.loads(training.read_text())
        write_json(options.output / "training.json", {**facts, "share_of_the_continued_weights": options.share})


if __name__ == "__main__":
    main()
