"""Checkpoints on the way of a long prompt: what they cost, and what a prompt that comes back to its middle saves.

    agentmem bench checkpoints [--tokens 6144] [--runs 5] [--directory DIRECTORY] [--output NAME]

A small Nemotron-H with random weights, Mamba 2 beside two layers of attention, whose state weighs as much as KV of
1,700 tokens. Everything is the worker's own: its engine computes the prompt with and without checkpoints on the way,
the two by turns; each checkpoint is written as a file, read, verified and taken up with blocks of the pool; and prompts
that keep a beginning of the first one and bring 64 new tokens go on from the last checkpoint before, or from nothing.
The first round is a warm-up and not counted.
"""

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.v1 import cache_store_pb2
from benchmarks import results
from benchmarks.loading import load
from benchmarks.options import at_least
from benchmarks.prompts import token_ids
from benchmarks.random_models import write_model
from benchmarks.tables import Claim, Table, milliseconds
from inference_service.engine.generation import TurnJob
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import Checkpoint
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.spacing import STEP, periodic_positions
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.storage.blocks import BlockMiss, write_block
from inference_service.storage.transport import File, PathTransport

CONFIG = {
    "model_type": "nemotron_h",
    "hidden_size": 256,
    "num_hidden_layers": 10,
    "hybrid_override_pattern": "M-M-*M-M-*",
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "attention_bias": False,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "mamba_proj_bias": False,
    "ssm_state_size": 64,
    "conv_kernel": 4,
    "n_groups": 2,
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-5,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_limit": [0.001, 100.0],
    "vocab_size": 4096,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}
NEW_TOKENS = 64
KEPT = (0.4, 0.75)
"""Shares of the prompt that later prompts begin with."""
MOST_COST, LEAST_SAVED = 1.05, 2.0
_T = TypeVar("_T")


class Bench:
    """A model, and the KV of one prompt in its pool and in files."""

    def __init__(self, model: LoadedModel, directory: Path, tokens: int) -> None:
        self.model = model
        self.prompt = token_ids(tokens, "checkpoints")
        self.positions = periodic_positions(model.checkpoint_distance, tokens)
        self._directory = directory
        self._files: dict[int, File] = {}
        # The prompt's blocks and pieces, and those of a prompt that leaves it, which shares the former.
        whole, pieces = blocks_of(tokens), (1 + len(self.positions)) * model.geometry.checkpoint_pieces
        self._blocks, self._pieces = list(range(whole)), list(range(pieces))
        left = blocks_of(tokens + NEW_TOKENS)
        self._other_blocks = list(range(whole, whole + left))
        self._other_pieces = list(range(pieces, pieces + model.geometry.checkpoint_pieces))
        space = model.memory.sizes.space
        if whole + left > space.blocks or pieces + len(self._other_pieces) > space.pieces:
            raise SystemExit(f"the pool has no room for two prompts of {tokens} tokens")

    def computed(self) -> TurnJob:
        """The prompt from nothing, with checkpoints."""
        begin = partial(self.model.arenas.sequence, self._blocks, self._pieces)
        return self._run(self.prompt, begin, self.positions)

    def from_nothing(self, sequence: Sequence[int]) -> TurnJob:
        """A prompt from nothing, elsewhere and without checkpoints."""
        return self._run(sequence, lambda: self.model.arenas.sequence(self._other_blocks, self._other_pieces))

    def resumed(self, loop: asyncio.Runner, sequence: Sequence[int], position: int) -> TurnJob:
        """Another prompt behind blocks of the first and the checkpoint there, whose file is read."""
        return self._run(sequence, partial(self.restored, loop, position))

    def _run(self, tokens: Sequence[int], begin: Callable[[], KVSequence], at: Collection[int] = ()) -> TurnJob:
        job = TurnJob(tokens, begin, None, lambda _: None, threading.Event(), checkpoints=at)
        self.model.engine.add(job)
        while self.model.engine.step():
            pass
        job.future.result(0)
        return job

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint's file, as the worker does after a turn."""
        ids, geometry = (self.model.fingerprint, "benchmark", self.prompt), self.model.geometry
        (header,) = checkpoint_headers(*ids, {checkpoint.position: checkpoint.tokens})
        path = str(self._directory / f"{header.chain_hash.hex()}.safetensors")
        digest, size = write_block(path, header, self.model.arenas.checkpoints.read(checkpoint)(), geometry)
        file = cache_store_pb2.StoredFile(path=path, digest=digest, size_bytes=size)
        self._files[checkpoint.position] = header, file

    def nbytes(self, position: int) -> int:
        """Of the checkpoint's file."""
        return self._files[position][1].size_bytes

    def forget(self, position: int) -> None:
        """Remove the checkpoint's file."""
        Path(self._files.pop(position)[1].path).unlink()

    def restored(self, loop: asyncio.Runner, position: int) -> KVSequence:
        """A sequence of blocks in the pool and a checkpoint's file, read and verified."""
        (found,) = loop.run(PathTransport().read_all([self._files[position]], self.model.geometry))
        if isinstance(found, BlockMiss):
            raise SystemExit("a file that was written a moment ago is damaged")
        full = position // BLOCK_TOKENS
        blocks = [*self._blocks[:full], *self._other_blocks[full:]]
        return self.model.arenas.started(
            Start(blocks, self._other_pieces, position, full * BLOCK_TOKENS, window_file=found)
        )


def blocks_of(tokens: int) -> int:
    """Return how many blocks so many tokens take."""
    return -(-tokens // BLOCK_TOKENS)


def measure(bench: Bench, loop: asyncio.Runner, runs: int) -> dict[str, Any]:
    """All of it, by turns."""
    samples: dict[str, list[float]] = {}
    for run in range(runs + 1):
        round_: dict[str, float] = {}
        ways: dict[str, Callable[[], TurnJob]] = {
            "without": partial(bench.from_nothing, bench.prompt),
            "with": bench.computed,
        }
        for name in sorted(ways, reverse=bool(run % 2)):
            round_[name], job = _seconds(ways[name])
            if name == "with":
                captured = dict(job.captured)
            del job
        for position, checkpoint in captured.items():
            if run:
                bench.forget(position)
            round_[f"write {position}"] = _seconds(partial(bench.write, checkpoint))[0]
            round_[f"read {position}"] = _seconds(partial(bench.restored, loop, position))[0]
        for kept, share in _kept(bench):
            sequence = [*bench.prompt[:kept], *token_ids(NEW_TOKENS, f"behind {share}")]
            at = max(at for at in bench.positions if at <= kept)
            round_[f"resumed {share}"] = _seconds(partial(bench.resumed, loop, sequence, at))[0]
            round_[f"from nothing {share}"] = _seconds(partial(bench.from_nothing, sequence))[0]
        for name, seconds in round_.items() if run else ():
            samples.setdefault(name, []).append(seconds)
    found = {name: results.summary(seconds) for name, seconds in samples.items()}
    first, geometry = bench.positions[0], bench.model.geometry
    return {
        "backend": results.backend(),
        "tokens": len(bench.prompt),
        "new_tokens": NEW_TOKENS,
        "distance": bench.model.checkpoint_distance,
        "bytes_per_token": geometry.bytes_per_token,
        "state_bytes": geometry.state_bytes,
        "checkpoint_bytes": bench.nbytes(first),
        "prefill": {
            **{name: found[name] for name in ways},
            "ratio": _ratios(samples["with"], samples["without"]),
        },
        "checkpoints": {
            str(at): {"write": found[f"write {at}"], "read": found[f"read {at}"]} for at in bench.positions
        },
        "edits": {
            str(kept): {
                "resumed_at": max(at for at in bench.positions if at <= kept),
                "resumed": found[f"resumed {share}"],
                "from_nothing": found[f"from nothing {share}"],
                "saved": _ratios(samples[f"from nothing {share}"], samples[f"resumed {share}"]),
            }
            for kept, share in _kept(bench)
        },
    }


def tables(figures: Mapping[str, Any]) -> list[Table]:
    """What checkpoints cost, and what they save."""
    prefill, tokens = figures["prefill"], figures["tokens"]
    distance, size = figures["distance"], figures["checkpoint_bytes"]
    blocks = distance * figures["bytes_per_token"]
    computing = prefill["without"]["median"] * distance / tokens
    rows = [
        [f"a prompt of {tokens:,} tokens, without", milliseconds(prefill["without"]), "", ""],
        [
            f"the same with {len(figures['checkpoints'])} checkpoints",
            milliseconds(prefill["with"]),
            f"{len(figures['checkpoints']) * size / 1e6:.1f} MB",
            f"{prefill['ratio']['median']:.3f}x",
        ],
        [f"blocks of {distance:,} tokens, computed", f"{computing * 1000:.0f} ms", f"{blocks / 1e6:.1f} MB", ""],
    ]
    for at, found in figures["checkpoints"].items():
        both = (found["write"]["median"] + found["read"]["median"]) / computing
        rows.append([f"checkpoint at {int(at):,}: written", milliseconds(found["write"]), f"{size / 1e6:.1f} MB", ""])
        rows.append(
            [f"checkpoint at {int(at):,}: read", milliseconds(found["read"]), "", f"{both:.3f}x of {distance:,} tokens"]
        )
    where = f"{figures['backend'].upper()}, a small Nemotron-H"
    edits = [
        [
            f"{int(kept):,}",
            f"{found['resumed_at']:,}",
            f"{int(kept) - found['resumed_at'] + figures['new_tokens']:,}",
            milliseconds(found["resumed"]),
            milliseconds(found["from_nothing"]),
            f"{found['saved']['median']:.1f}x",
        ]
        for kept, found in figures["edits"].items()
    ]
    note = f"Checkpoints are {distance:,} tokens apart. The file's read is counted; the blocks were in the pool."
    saved = ("kept tokens", "resumed at", "computed", "resumed", "from nothing", "times as fast")
    return [
        Table(
            f"What checkpoints on the way cost ({where})",
            ("", "time", "bytes", "ratio"),
            rows,
            "Files are read from the page cache.",
        ),
        Table(f"A prompt of {tokens:,} tokens that is left in its middle ({where})", saved, edits, note),
    ]


def claims(figures: Mapping[str, Any]) -> list[Claim]:
    """They cost prefill nothing that can be told from chance, and save what lies before them."""
    least = min(figures["edits"].values(), key=lambda each: float(each["saved"]["median"]))
    blocks = figures["distance"] * figures["bytes_per_token"]
    return [
        Claim("prefill with over without", figures["prefill"]["ratio"]["median"], MOST_COST, at_most=True),
        Claim("a checkpoint over the blocks between two", figures["checkpoint_bytes"] / blocks, 1.05, at_most=True),
        Claim("from nothing over resumed, the least", least["saved"]["median"], LEAST_SAVED, at_most=False),
    ]


def main(tokens: int, runs: int, directory: str | None, output: str) -> int:
    """Measure, print, write; the exit status."""
    with tempfile.TemporaryDirectory(dir=directory) as place, asyncio.Runner() as loop:
        write_model(dict(CONFIG), Path(place) / "model", quantized=False)
        model = load("hybrid", str(Path(place) / "model"), hashes=ContentHashes(Path(place) / "hashes.json"))
        figures = measure(Bench(model, Path(place), tokens), loop, runs)
    return results.conclude(output, figures, tables(figures), claims(figures))


def _kept(bench: Bench) -> list[tuple[int, float]]:
    return [(kept, share) for share in KEPT if (kept := int(share * len(bench.prompt))) >= bench.positions[0]]


def _ratios(over: Sequence[float], under: Sequence[float]) -> dict[str, Any]:
    return results.summary([a / b for a, b in zip(over, under, strict=True)])


def _seconds(work: Callable[[], _T]) -> tuple[float, _T]:
    mx.synchronize()
    mx.clear_cache()
    started = time.perf_counter()
    result = work()
    mx.synchronize()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokens", type=int, default=6144)
    options.add_argument("--runs", type=at_least(1), default=5)
    options.add_argument("--directory", help="where the files are for the time being; else the system's for such")
    options.add_argument("--output", help="name of the file in benchmarks/results")
    arguments = options.parse_args()
    if arguments.tokens <= 2 * STEP:
        sys.exit(f"--tokens: a prompt leaves checkpoints from {2 * STEP + 1} on")
    output = arguments.output or f"checkpoints-{results.backend()}"
    sys.exit(main(arguments.tokens, arguments.runs, arguments.directory, output))
