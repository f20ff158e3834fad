"""Does mlx-lm compute what was trained? Random weights of each architecture, exported, and logits compared in float32.

    python -m benchmarks.demo_model.agreement [--architecture gpt_oss]

Needs PyTorch and MLX in one environment. Weights are exported in bfloat16, so both sides read them from the export.
Norms, biases and sinks are drawn too: at their usual first values a mistake in them would not show.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from torch import nn
from transformers import AutoModelForCausalLM

from benchmarks.demo_model.architectures import build, load, save
from benchmarks.demo_model.configurations import CONFIGURATIONS, LLAMA, UNTIED
from benchmarks.demo_model.model import Llama, ModelConfig
from benchmarks.demo_model.tokenizer import VOCABULARY

LENGTH = 300
"""More than two windows, and no multiple of one."""
LIMIT = 1e-3


def roughen(trained: nn.Module) -> None:
    """Move each parameter by a random amount, so that none is at a value that hides its use."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def differences(architecture: str) -> dict[str, float]:
    """The largest difference of a logit: of the training model to mlx-lm, and to transformers' own attention."""
    torch.manual_seed(0)
    trained = Llama(ModelConfig()) if architecture == LLAMA else build(architecture)
    roughen(trained)
    tokens = np.random.default_rng(0).integers(4, VOCABULARY, (2, LENGTH))
    found = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        save(trained, directory)
        trained = load(directory)
        with torch.no_grad():
            ours = trained.logits(trained(torch.from_numpy(tokens))).numpy()
            if architecture not in (LLAMA, *UNTIED):
                plain = AutoModelForCausalLM.from_pretrained(
                    directory, attn_implementation="eager", dtype=torch.float32
                )
                found["transformers"] = float(np.abs(plain(torch.from_numpy(tokens)).logits.numpy() - ours).max())
            elif architecture in UNTIED:
                trained.causal.set_attn_implementation("eager")
                trained.causal.set_experts_implementation("eager")
                plain_logits = trained.logits(trained(torch.from_numpy(tokens))).numpy()
                found["transformers"] = float(np.abs(plain_logits - ours).max())
        model, _ = load_model(directory)
        model.set_dtype(mx.float32)
        theirs = np.array(model(mx.array(tokens)))
        found["mlx-lm"] = float(np.abs(theirs - ours).max())
        found["spread of the logits"] = float(ours.std())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--architecture", choices=[LLAMA, *CONFIGURATIONS], action="append")
    wrong = []
    for architecture in parser.parse_args().architecture or [LLAMA, *CONFIGURATIONS]:
        found = differences(architecture)
        print(architecture, {name: float(f"{value:.2g}") for name, value in found.items()}, flush=True)
        if max(found.get("transformers", 0.0), found["mlx-lm"]) > LIMIT:
            wrong.append(architecture)
    if wrong:
        raise SystemExit(f"the export of {', '.join(wrong)} is wrong: its logits differ by more than {LIMIT}")


if __name__ == "__main__":
    main()
