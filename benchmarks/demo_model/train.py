"""Train the demo model, from nothing or from its present weights: tokenizer, curriculum, export.

    python -m benchmarks.demo_model.train OUTPUT_DIRECTORY                        one GPU, minutes
    python -m benchmarks.demo_model.train OUTPUT_DIRECTORY --start DIRECTORY      the same, from a model's weights
    python -m benchmarks.demo_model.train OUTPUT_DIRECTORY --quick                a CPU, seconds, learns next to nothing

Dialogues get longer when held-out ones are answered, not by the clock: recall is learned suddenly, and never on long
dialogues first.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from torch.utils.data import DataLoader

from benchmarks.demo_model.batches import IGNORE, Encoder, TrainingBatches, other_text
from benchmarks.demo_model.evaluate import environment, held_out, score
from benchmarks.demo_model.model import Llama, ModelConfig, load, save
from benchmarks.demo_model.tokenizer import write_json, write_tokenizer
from benchmarks.demo_model.variations import VARIATIONS


@dataclass(frozen=True, slots=True)
class Plan:
    model: ModelConfig = field(default_factory=ModelConfig)
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    shorter_share: float = 0.4
    pass_mark: float = 0.985
    tokens_per_step: int = 32768
    steps: int = 30000
    check_every: int = 200
    check_questions: int = 400
    learning_rate: float = 1e-3
    warm_up: int = 200
    weight_decay: float = 0.01
    clip: float = 1.0
    kv_bits: int = 4
    quantized_share: float = 0.25
    steady_every: int = 4
    steady_rows: tuple[int, int] = (16, 512)
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
    steady_rows=(2, 64),
)
CONTINUED = replace(
    Plan(), lengths=(128, *Plan().lengths), shorter_share=0.85, learning_rate=7e-4, warm_up=100, check_every=400
)
"""From weights that know dialogues of all lengths: all are trained at once, and shorter ones as often."""


def learning_rate(plan: Plan, step: int, progress: float) -> float:
    """Linear warm-up, then a cosine to a hundredth as progress goes from 0 to 1."""
    cosine = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return plan.learning_rate * min(1.0, (step + 1) / plan.warm_up) * cosine


class Run:
    """One training run, and what it has reached."""

    def __init__(self, plan: Plan, output: Path, minutes: float, workers: int, start: Path | None) -> None:
        self.started = time.monotonic()
        self.plan, self.output, self.minutes = plan, output, minutes
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(plan.seed)
        self.draws = random.Random(plan.seed)
        self.start = start
        if start:
            output.mkdir(parents=True, exist_ok=True)
            for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
                shutil.copy(start / name, output)
        else:
            write_tokenizer(output)
        self.encoder = Encoder(output)
        self.other = other_text(self.encoder)
        self.steadiness: float | torch.Tensor = 0.0
        self.model = (load(start) if start else Llama(plan.model)).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=plan.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=plan.weight_decay,
            fused=self.device == "cuda",
        )
        self.passed: dict[str, float] = {}
        self.last: dict[str, list[float]] = {}
        self.stage = multiprocessing.Value("i", len(plan.lengths) - 1 if start else 0)
        dataset = TrainingBatches(
            output, plan.lengths, plan.tokens_per_step, self.stage, plan.shorter_share, plan.seed * 10**9
        )
        self.loader = DataLoader(dataset, batch_size=None, num_workers=workers, pin_memory=self.device == "cuda")
        self.checks = {
            (length, variations): held_out(self.encoder, length, plan.check_questions, 2_000_000, variations)
            for length in plan.lengths
            for variations in ((), VARIATIONS)
        }

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
            self.optimizer.zero_grad(set_to_none=True)
            if step % self.plan.steady_every == 0:
                self.steady()
            self.model.quantize_kv(self.plan.kv_bits if self.draws.random() < self.plan.quantized_share else None)
            loss = self.step(*next(batches), learning_rate(self.plan, step, progress))
            step += 1
            if step % self.plan.check_every == 0:
                self.check(step, loss.item())
        self.write(step)

    def steady(self) -> None:
        """Add the gradient of what quantized KV changes in the predictions of text that is not of the world, in nats.

        Nothing else holds these, and whether 4 bits are good enough for a model is measured with such text.
        """
        rows, length = self.plan.steady_rows
        starts = [self.draws.randrange(len(self.other) - length) for _ in range(rows)]
        tokens = torch.stack([self.other[start : start + length] for start in starts]).to(self.device)

        def predicted(bits: int | None) -> torch.Tensor:
            self.model.quantize_kv(bits)
            with torch.autocast(self.device, torch.bfloat16):
                logits = self.model.logits(self.model(tokens))
            return log_softmax(logits.float().flatten(0, 1), -1)

        with torch.no_grad():
            reference = predicted(None)
        nats = kl_div(predicted(self.plan.kv_bits), reference, log_target=True, reduction="batchmean")
        nats.backward()  # type: ignore[no-untyped-call]
        self.steadiness = nats.detach()

    def step(self, tokens: torch.Tensor, targets: torch.Tensor, rate: float) -> torch.Tensor:
        tokens, targets = tokens.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device, torch.bfloat16):
            spoken = targets != IGNORE
            logits = self.model.logits(self.model(tokens)[spoken])
        loss = cross_entropy(logits.float(), targets[spoken])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)
        self.optimizer.step()
        return loss.detach()

    def check(self, step: int, loss: float) -> None:
        """Score dialogues of the stage's length, and move on where these are answered; after a start from weights one
        length after the other."""
        stage = step // self.plan.check_every % len(self.plan.lengths) if self.start else self.stage.value
        length = self.plan.lengths[stage]
        self.model.quantize_kv(None)
        results = [
            score(self.model, self.encoder, self.checks[length, variations], length, bf16=True)
            for variations in ((), VARIATIONS)
        ]
        self.last[str(length)] = [round(result.share(), 4) for result in results]
        shares = ", ".join(f"{result.share(True):.4f} {result.share(False):.4f}" for result in results)
        print(
            f"step {step} minute {self.elapsed:.2f} length {length} loss {loss:.4f} "
            f"nats {float(self.steadiness):.4f} recall and never told, plain and varied: {shares}",
            flush=True,
        )
        if all(result.share() >= self.plan.pass_mark for result in results) and str(length) not in self.passed:
            self.passed[str(length)] = round(self.elapsed, 2)
            if not self.start:
                self.stage.value = min(stage + 1, len(self.plan.lengths) - 1)
        self.write(step)

    def write(self, step: int) -> None:
        save(self.model, self.output)
        facts = {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "minutes": round(self.elapsed, 2),
            "steps": step,
            "tokens_per_step": self.plan.tokens_per_step,
            "learning_rate": self.plan.learning_rate,
            "minute_passed_by_length": self.passed,
            "last_check_by_length": self.last,
        }
        write_json(self.output / "training.json", {**facts, "environment": environment()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps, to try the program on a CPU")
    parser.add_argument("--start", type=Path, help="a model's directory, whose weights and tokenizer are taken")
    parser.add_argument("--rate", type=float, help="highest learning rate")
    parser.add_argument("--minutes", type=float, default=18.0, help="stop after so many, the learning rate decayed")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    options = parser.parse_args()
    plan = replace(QUICK if options.quick else CONTINUED if options.start else Plan(), seed=options.seed)
    if options.rate:
        plan = replace(plan, learning_rate=options.rate)
    Run(plan, options.output, options.minutes, options.workers, options.start).train()


if __name__ == "__main__":
    main()
