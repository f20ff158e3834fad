"""Train the demo model from nothing: tokenizer, curriculum, export.

    python -m benchmarks.demo_model.train OUTPUT_DIRECTORY            one GPU, minutes
    python -m benchmarks.demo_model.train OUTPUT_DIRECTORY --quick    a CPU, seconds, learns next to nothing

Dialogues get longer when held-out ones are answered, not by the clock: recall is learned suddenly, and never on long
dialogues first.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from benchmarks.demo_model.batches import IGNORE, Encoder, TrainingBatches
from benchmarks.demo_model.evaluate import environment, held_out, score
from benchmarks.demo_model.model import Llama, ModelConfig, save
from benchmarks.demo_model.tokenizer import write_json, write_tokenizer


@dataclass(frozen=True, slots=True)
class Plan:
    model: ModelConfig = field(default_factory=ModelConfig)
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    pass_mark: float = 0.985
    tokens_per_step: int = 32768
    steps: int = 30000
    check_every: int = 200
    check_questions: int = 400
    learning_rate: float = 1e-3
    warm_up: int = 200
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0


QUICK = Plan(
    model=ModelConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2),
    lengths=(96, 192),
    pass_mark=0.0,
    tokens_per_step=1536,
    steps=20,
    check_every=10,
    check_questions=20,
    warm_up=5,
)


def learning_rate(plan: Plan, step: int, progress: float) -> float:
    """Linear warm-up, then a cosine to a twentieth as progress goes from 0 to 1."""
    cosine = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return plan.learning_rate * min(1.0, (step + 1) / plan.warm_up) * cosine


class Run:
    """One training run, and what it has reached."""

    def __init__(self, plan: Plan, output: Path, minutes: float, workers: int) -> None:
        self.started = time.monotonic()
        self.plan, self.output, self.minutes = plan, output, minutes
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(plan.seed)
        write_tokenizer(output)
        self.encoder = Encoder(output)
        self.model = Llama(plan.model).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=plan.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=plan.weight_decay,
            fused=self.device == "cuda",
        )
        self.passed: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.stage = multiprocessing.Value("i", 0)
        dataset = TrainingBatches(output, plan.lengths, plan.tokens_per_step, self.stage)
        self.loader = DataLoader(dataset, batch_size=None, num_workers=workers, pin_memory=self.device == "cuda")
        self.checks = {length: held_out(length, plan.check_questions, 2_000_000) for length in plan.lengths}

    @property
    def elapsed(self) -> float:
        return (time.monotonic() - self.started) / 60

    def train(self) -> None:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        print(f"{parameters} parameters on {environment()['device']}", flush=True)
        batches: Iterator[tuple[torch.Tensor, torch.Tensor]] = iter(self.loader)
        step = 0
        while step < self.plan.steps and self.elapsed < self.minutes:
            progress = max(step / self.plan.steps, self.elapsed / self.minutes)
            loss = self.step(*next(batches), learning_rate(self.plan, step, progress))
            step += 1
            if step % self.plan.check_every == 0:
                self.check(step, loss.item())
        self.write(step)

    def step(self, tokens: torch.Tensor, targets: torch.Tensor, rate: float) -> torch.Tensor:
        tokens, targets = tokens.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device, torch.bfloat16):
            spoken = targets != IGNORE
            logits = self.model.logits(self.model(tokens)[spoken])
        loss = cross_entropy(logits.float(), targets[spoken])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)
        self.optimizer.step()
        return loss.detach()

    def check(self, step: int, loss: float) -> None:
        length = self.plan.lengths[self.stage.value]
        result = score(self.model, self.encoder, self.checks[length], length, bf16=True)
        self.last[str(length)] = round(result.share(), 4)
        print(
            f"step {step} minute {self.elapsed:.2f} length {length} loss {loss:.4f} "
            f"recall {result.share(True):.4f} never told {result.share(False):.4f}",
            flush=True,
        )
        if result.share() >= self.plan.pass_mark and str(length) not in self.passed:
            self.passed[str(length)] = round(self.elapsed, 2)
            self.stage.value = min(self.stage.value + 1, len(self.plan.lengths) - 1)
            self.write(step)

    def write(self, step: int) -> None:
        save(self.model, self.output)
        facts = {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "minutes": round(self.elapsed, 2),
            "steps": step,
            "tokens_per_step": self.plan.tokens_per_step,
            "minute_passed_by_length": self.passed,
            "last_check_by_length": self.last,
        }
        write_json(self.output / "training.json", {**facts, "environment": environment()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps, to try the program on a CPU")
    parser.add_argument("--minutes", type=float, default=18.0, help="stop after so many, the learning rate decayed")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    options = parser.parse_args()
    plan = replace(QUICK if options.quick else Plan(), seed=options.seed)
    Run(plan, options.output, options.minutes, options.workers).train()


if __name__ == "__main__":
    main()
