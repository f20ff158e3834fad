"""What contestants over one model in one process are, and the engine as one; `mlx_lm_contestants` has the others.

Each computes prompts, lets agents generate together, and lets one more join and leave. An agent is a `Row`: its tokens
and the caches that hold all of them but the last. Times are in seconds, memory in bytes.
"""

import asyncio
import copy
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.v1 import cache_store_pb2
from inference_service.domain import Sampling
from inference_service.engine.arenas import Arenas
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.batching import BatchEngine
from inference_service.engine.checkpoints import space_of
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.geometry import merged
from inference_service.engine.network import Network
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.restore import headers
from inference_service.models.capability import QuantizationSettings, judged
from inference_service.models.latents import keep_latents
from inference_service.models.proof import Speeds, compiled_steps, fastest_products
from inference_service.storage.blocks import BlockMiss, write_block
from inference_service.storage.transport import PathTransport

ENDLESS = 1 << 30
"""Tokens that nobody generates."""


@dataclass(frozen=True)
class Row:
    """An agent: its tokens, and caches of all of them but the last."""

    tokens: list[int]
    caches: list[Any]

    @classmethod
    def of(cls, tokens: Sequence[int], caches: list[Any]) -> "Row":
        """From caches that also hold a few tokens more, whose ids do not matter."""
        end = next(cache.offset for cache in caches if hasattr(cache, "offset"))  # mlx-lm's of states have none
        return cls([*tokens, *[tokens[-1]] * (end + 1 - len(tokens))], caches)

    def shortened(self, by: int) -> "Row":
        """The same without the last tokens; the caches share their arrays."""
        caches = [copy.copy(cache) for cache in self.caches]
        for cache in caches:
            if hasattr(cache, "buffers"):
                cache.buffers = copy.copy(cache.buffers)
            if hasattr(cache, "cache"):  # The arrays of states are replaced in their list.
                cache.cache = list(cache.cache)
            if by:
                cache.trim(by)
        return Row(self.tokens[: len(self.tokens) - by], caches)

    @property
    def nbytes(self) -> int:
        """Bytes of the caches, spare room included."""
        return sum(int(cache.nbytes) for cache in self.caches)


@dataclass(frozen=True)
class Prefilled:
    """A prompt computed, up to its first token. `peak` is memory over what was there before."""

    seconds: float
    peak: int
    row: Row


class Running(Protocol):
    """Agents that generate together."""

    def step(self) -> None:
        """One token for each."""

    def join(self, row: Row) -> None:
        """One more agent; returns with its first token."""

    def leave(self) -> None:
        """The agent that joined last leaves, and its caches are copied out."""


class Contestant(Protocol):
    """One way to serve the model."""

    name: str

    def prefill(self, tokens: Sequence[int]) -> Prefilled:
        """Compute a prompt from nothing, up to its first token."""

    def running(self, rows: Sequence[Row]) -> Running:
        """Let agents generate together; returns when each has its first token."""

    def resume(self, row: Row) -> float:
        """Turn an agent's KV at rest in memory into caches that can decode."""


class _NoText:
    """Random weights have no tokenizer: no token ends, and none has text."""

    special_ids: frozenset[int] = frozenset()
    eos_ids: frozenset[int] = frozenset()

    def token_bytes(self, token_id: int) -> bytes:  # noqa: ARG002
        return b""


class Ours:
    """The engine: Q4 caches behind the attention backend, turns on the batch engine."""

    name = "agentmem"

    def __init__(self, model: nn.Module, speeds: Speeds | None = None) -> None:
        model = _copied(model)
        seam = AttentionBackend()
        keep_latents(self.name, model, seam)
        mx.eval(model.parameters())
        seam.install(model)
        self.geometry, _ = judged(self.name, model, seam, QuantizationSettings())
        paths = seam.self_test(self.geometry, speeds and speeds.paths)
        weight_bytes = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
        network = Network(model, shows_arrays=self.geometry.shows_arrays)
        self.paths = [*paths, *fastest_products(network, self.geometry, speeds)]
        network.steps = compiled_steps(self.name, network, self.geometry, self.paths)
        self.engine = BatchEngine(
            model=network,
            tokenizer=_NoText(),  # type: ignore[arg-type]
            new_caches=self.geometry.new_caches,
            token_bytes=self.geometry.bytes_per_token,
            weight_bytes=weight_bytes,
        )

    def job(
        self, tokens: Sequence[int], caches: Callable[[], Any], max_tokens: int, emit: Any, reused: int = 0
    ) -> TurnJob:
        """A turn, queued. The caches will hold `reused` tokens."""
        decoding = Decoding(max_tokens, sampling=Sampling(ignore_eos=True))
        turn = TurnJob(tokens, caches, decoding, emit, threading.Event(), reused=reused)
        self.engine.add(turn)
        return turn

    def prefill(self, tokens: Sequence[int]) -> Prefilled:
        """Through the engine's own chunks."""
        with fresh_memory() as before:
            first: list[tuple[float, int]] = []
            started = time.perf_counter()
            turn = self.job(
                tokens,
                self.geometry.new_caches,
                1,
                lambda _: first.append((time.perf_counter() - started, mx.get_peak_memory() - before)),
            )
            while not turn.future.done():
                self.engine.step()
        caches, _ = turn.future.result()
        return Prefilled(*first[0], Row.of(tokens, caches))

    def restored(self, row: Row, directory: Path, samples: int) -> list[float]:
        """Seconds from the files of an agent's blocks and its checkpoint, each byte verified, to caches; by turns.

        The worker's own functions write and read them; they are in the page cache.
        """
        geometry, tokens = self.geometry, row.caches[0].offset
        arenas, blocks, pieces = self._in_arenas(row)
        ids = "benchmark", "benchmark", row.tokens[:tokens]
        held, _ = space_of(row.caches, geometry)
        parts = [(header, arenas.read_block(blocks[i], header.token_count)) for i, header in enumerate(headers(*ids))]
        if pieces:
            [header] = checkpoint_headers(*ids, {tokens: held})
            parts.append((header, arenas.read(pieces, held)))
        files = []
        for number, (header, tensors) in enumerate(parts):
            path = str(directory / str(number))
            digest, size = write_block(path, header, tensors, geometry)
            files.append((header, cache_store_pb2.StoredFile(path=path, digest=digest, size_bytes=size)))
        del parts
        seconds = []
        with asyncio.Runner() as loop:
            for _ in range(samples + 1):
                mx.clear_cache()
                started = time.perf_counter()
                host = loop.run(PathTransport().read_all(files, geometry))
                good = [tensors for tensors in host if not isinstance(tensors, BlockMiss)]
                window = arenas.uploaded(good.pop(), 0, tokens) if pieces else None
                caches = arenas.caches(tokens, [], good, window, tokens + 2)
                mx.synchronize()
                seconds.append(time.perf_counter() - started)
                del host, good, window, caches
        return seconds

    def _in_arenas(self, row: Row) -> tuple[Arenas, list[int], list[int]]:
        """An agent in a pool of its own, with its blocks and the pieces of its checkpoint."""
        tokens = row.caches[0].offset
        blocks = list(reversed(range(-(-tokens // BLOCK_TOKENS))))
        _, count = space_of(row.caches, self.geometry)
        pieces = list(range(count))
        arenas = Arenas(self.geometry, len(blocks), len(pieces))
        arenas.write(row.caches, 0, blocks, pieces)
        mx.synchronize()
        return arenas, blocks, pieces

    def running(self, rows: Sequence[Row]) -> "_OursRunning":
        """On the batch engine."""
        return _OursRunning(self, rows)

    def resume(self, row: Row) -> float:
        """Gathering the pool's blocks, which lie in any order, and merging the caches into a batch of one."""
        tokens = row.caches[0].offset
        held, _ = space_of(row.caches, self.geometry)
        arenas, blocks, pieces = self._in_arenas(row)
        started = time.perf_counter()
        caches = arenas.caches(tokens, blocks, [], arenas.checkpoint(pieces, held, tokens) if pieces else None)
        mx.eval([cache.state for cache in merged(caches)])
        return time.perf_counter() - started


def _copied(model: nn.Module) -> nn.Module:
    """The same model in modules of its own, over the same weights: what the engine replaces, mlx-lm shall not see."""
    copied: nn.Module = copy.deepcopy(model, {id(array): array for _, array in tree_flatten(model.parameters())})
    return copied


class _OursRunning:
    def __init__(self, ours: Ours, rows: Sequence[Row]) -> None:
        self._ours = ours
        self._turns: list[TurnJob] = []
        for row in rows:
            self.join(row)

    def step(self) -> None:
        self._ours.engine.step()

    def join(self, row: Row) -> None:
        first = threading.Event()
        self._turns.append(self._ours.job(row.tokens, lambda: row.shortened(0).caches, ENDLESS, lambda _: first.set()))
        while not first.is_set():
            self._ours.engine.step()

    def leave(self) -> None:
        turn = self._turns.pop()
        turn.cancelled.set()
        self._ours.engine.step()
        mx.synchronize()

    def __del__(self) -> None:
        while self._turns:
            self.leave()


@contextmanager
def fresh_memory() -> Iterator[int]:
    """Start counting the peak; what is in use now."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    yield mx.get_active_memory()
