"""The engine as a contestant over one model in one process; `mlx_lm_contestants` has the others.

Each computes a prompt from nothing up to its first token (`prefill`), lets agents generate together, one token for each
in a `step` (`running`), and has an agent go on whose KV is at rest in memory (`resume`). Each has rows of its own kind:
an agent's tokens, and KV of all but the last. Times are in seconds, memory in bytes.
"""

import asyncio
import copy
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from agentmem.kv.blockfile import BLOCK_TOKENS, BlockHeader
from agentmem.v1 import cache_store_pb2
from benchmarks.places import Place, Places
from benchmarks.prompts import token_ids
from inference_service.domain import Sampling
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.batching import BatchEngine
from inference_service.engine.calibrating import TOKENS, calibrate_in_time
from inference_service.engine.device import on_cuda
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.geometry import HostBuffers
from inference_service.engine.network import Network
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import Checkpoint
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.product_speeds import ProductSpeeds
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.restore import headers
from inference_service.models.capability import QuantizationSettings, judged
from inference_service.models.latents import keep_latents
from inference_service.models.proof import attention_paths, fastest_products, traced_problem
from inference_service.storage.blocks import BlockMiss, write_block
from inference_service.storage.transport import read_all

ENDLESS = 1 << 30


@dataclass(frozen=True)
class Row:
    """An agent with its KV in blocks, which shorter rows share."""

    tokens: list[int]
    place: Place
    checkpoint: Checkpoint | None = None

    @property
    def length(self) -> int:
        return len(self.tokens) - 1

    @property
    def blocks(self) -> list[int]:
        return self.place.blocks[: -(-self.length // BLOCK_TOKENS)]

    @property
    def nbytes(self) -> int:
        return self.place.nbytes(len(self.blocks), self.checkpoint)

    def shortened(self, by: int) -> "Row":
        return replace(self, tokens=self.tokens[: len(self.tokens) - by])


@dataclass(frozen=True)
class Prefilled:
    """A prompt up to its first token. `peak` is memory over what was there before."""

    seconds: float
    peak: int
    row: Any


class _NoText:
    """A tokenizer for random weights: no token ends, and none has text."""

    special_ids: frozenset[int] = frozenset()
    eos_ids: frozenset[int] = frozenset()

    def token_bytes(self, token_id: int) -> bytes:  # noqa: ARG002
        return b""


class Ours:
    """The engine: KV in the blocks of a store of its own, turns on the batch engine.

    K and V are calibrated on random tokens, which takes as long as a model's own text. `scheme` is another than the
    model's.
    """

    def __init__(self, model: nn.Module, speeds: ProductSpeeds | None = None, scheme: str = "") -> None:
        self.name = f"agentmem, {scheme}" if scheme else "agentmem"
        model = _copied(model)
        seam = AttentionBackend()
        keep_latents(self.name, model, seam)
        mx.eval(model.parameters())
        seam.install(model)
        geometry, _ = judged(self.name, model, seam, QuantizationSettings())
        format = geometry.format
        self.geometry = replace(geometry, format=replace(format, scheme=scheme or format.scheme))
        network = Network(model, shows_arrays=self.geometry.shows_arrays)
        paths, kernels = attention_paths(self.geometry)
        self.paths = [*paths, *fastest_products(network, self.geometry, speeds)]
        if on_cuda():
            traced = kernels._replace(traced=True)
            kernels = kernels if traced_problem(network, self.geometry, traced) else traced
        calibration = calibrate_in_time(network, token_ids(TOKENS, "calibration"), self.geometry)
        self.places = Places(self.geometry, calibration.codecs(self.geometry), kernels)
        self.store = self.places.store
        if kernels.traced:
            self.store.trace(network.computed)
        self.engine = BatchEngine(model=network, tokenizer=_NoText(), store=self.store)  # type: ignore[arg-type]

    def job(
        self, tokens: Sequence[int], begin: Callable[[], KVSequence], max_tokens: int, emit: Any, reused: int = 0
    ) -> TurnJob:
        """Queue a turn that generates so many tokens, with KV of `reused` tokens."""
        decoding = Decoding(max_tokens, sampling=Sampling(ignore_eos=True))
        turn = TurnJob(tokens, begin, decoding, emit, threading.Event(), reused=reused)
        self.engine.add(turn)
        return turn

    def prefill(self, tokens: Sequence[int]) -> Prefilled:
        self.places.shrink()
        with fresh_memory() as before:
            place = self.places.take(len(tokens) + 1)
            self._take(place)
            first: list[tuple[float, int]] = []
            started = time.perf_counter()
            turn = self.job(
                tokens,
                lambda: self.store.sequence(place.blocks, place.pieces),
                1,
                lambda _: first.append((time.perf_counter() - started, mx.get_peak_memory() - before)),
            )
            row = self._at_rest(turn, place)
        return Prefilled(*first[0], row)

    def _at_rest(self, turn: TurnJob, place: Place) -> Row:
        """Compute a turn to its end. Its last token, which has no KV yet, is any."""
        while not turn.future.done():
            self.engine.step()
        kv, generated = turn.future.result()
        if kv is None:
            raise RuntimeError("a turn ended without its KV")
        checkpoint = self.store.checkpoints.capture(kv, last=True)
        return Row([*turn.sequence, *generated.token_ids, turn.sequence[-1]], place, checkpoint)

    def copied(self, row: Row, tokens: int) -> Row:
        """Return the same agent in blocks of its own, which have room for so many tokens."""
        kept, place = self.places.take(0, checkpoints=0), self.places.take(tokens)
        place.first, kept.first = kept, row.place
        self._take(kept)
        self._take(place)
        for source, target in zip(row.blocks, place.blocks, strict=False):
            self.store.full.copy(source, target)
        checkpoint = row.checkpoint
        if checkpoint is not None and (windows := self.store.windows) is not None:
            states = int(self.geometry.states is not None)
            pieces = kept.pieces[: len(checkpoint.pieces) - states]
            for source, target in zip(checkpoint.pieces[states:], pieces, strict=True):
                windows.copy(source, target)
            checkpoint = checkpoint._replace(pieces=(*checkpoint.pieces[:states], *pieces))
        return Row(row.tokens, place, checkpoint)

    def here(self, row: Row) -> Callable[[], KVSequence]:
        """Return a function that has an agent go on in its own blocks, once."""
        start = Start(row.place.blocks, row.place.pieces, row.length, checkpoint=row.checkpoint)
        return partial(self._begun, row, start)

    def going_on(self, row: Row, tokens: int) -> tuple[Place, Callable[[], KVSequence]]:
        """Return a place for an agent that grows to so many tokens, and a function that begins it there, as the
        worker's turns do where KV is in memory: full blocks are shared, one that is not is copied.
        """
        full, cut = divmod(row.length, BLOCK_TOKENS)
        place = self.places.sharing(row.place, full, tokens)
        self._take(place)
        copied = (row.blocks[full], place.blocks[full]) if cut else None
        start = Start(place.blocks, place.pieces, row.length, full * BLOCK_TOKENS, copied, checkpoint=row.checkpoint)
        return place, partial(self._begun, row, start)

    def _take(self, place: Place) -> None:
        self.store.full.take(place.blocks)
        if self.store.windows is not None:
            self.store.windows.take(place.pieces)

    def _begun(self, _row: Row, start: Start) -> KVSequence:
        return self.store.started(start)

    def restored(self, row: Row, directory: Path, samples: int) -> list[float]:
        """Return seconds from files of an agent's KV, which are in the page cache, to KV that can grow, each byte
        verified.
        """
        geometry, store, tokens = self.geometry, self.store, row.length
        ids = "benchmark", "benchmark", row.tokens[:tokens]
        blocks = list(headers(*ids))
        parts = [(each, store.read_block(row.blocks[i], each.token_count)()) for i, each in enumerate(blocks)]
        if row.checkpoint is not None:
            [header] = checkpoint_headers(*ids, {tokens: row.checkpoint.tokens})
            parts.append((header, store.checkpoints.read(row.checkpoint)()))
        files = []
        for number, (header, tensors) in enumerate(parts):
            path = str(directory / str(number))
            digest, size = write_block(path, header, tensors, geometry)
            files.append((header, cache_store_pb2.StoredFile(path=path, digest=digest, size_bytes=size)))
        del parts
        place = self.places.take(tokens + 2)
        self._take(place)

        def into(header: BlockHeader) -> HostBuffers | None:
            return store.host_buffers(place.blocks[header.first_token // BLOCK_TOKENS], header.token_count)

        seconds = []
        with asyncio.Runner() as loop:
            for _ in range(samples + 1):
                mx.clear_cache()
                started = time.perf_counter()
                host = loop.run(read_all(files, geometry, into))
                good = [tensors for tensors in host if not isinstance(tensors, BlockMiss)]
                window = good.pop() if row.checkpoint is not None else None
                read = [(block, file) for block, file in zip(place.blocks, good, strict=False) if file]
                start = Start(place.blocks, place.pieces, tokens, files=read, window_file=window)
                _computed(store.started(start))
                seconds.append(time.perf_counter() - started)
                del host, good, window, read, start
        return seconds

    def running(self, rows: Sequence[Row], tokens: int) -> "_OursRunning":
        """Start a batch. Each agent has blocks of its own, as agents that share nothing."""
        return _OursRunning(self, rows, tokens)

    def resume(self, row: Row) -> float:
        """Return seconds to go on with KV where it is in the pool."""
        _, begin = self.going_on(row, len(row.tokens) + 1)
        mx.synchronize()
        started = time.perf_counter()
        _computed(begin())
        return time.perf_counter() - started


def _computed(sequence: KVSequence) -> None:
    mx.eval([each.state for each in sequence.working.values()], sequence.states.arrays if sequence.states else [])
    mx.synchronize()


def _copied(model: nn.Module) -> nn.Module:
    """Copy the modules over the same weights: the engine replaces some, which mlx-lm must not see."""
    copied: nn.Module = copy.deepcopy(model, {id(array): array for _, array in tree_flatten(model.parameters())})
    return copied


class _OursRunning:
    def __init__(self, ours: Ours, rows: Sequence[Row], tokens: int) -> None:
        self._ours = ours
        self._turns: list[TurnJob] = []
        for row in rows:
            self._join(row, tokens)

    def step(self) -> None:
        self._ours.engine.step()
        if any(turn.future.done() for turn in self._turns):
            raise RuntimeError("a turn is over that was to generate still")

    def _join(self, row: Row, tokens: int) -> None:
        first = threading.Event()
        begin = self._ours.here(self._ours.copied(row, len(row.tokens) + tokens))
        self._turns.append(self._ours.job(row.tokens, begin, tokens, lambda _: first.set(), row.length))
        while not first.is_set():
            self.step()

    def __del__(self) -> None:
        for turn in self._turns:
            turn.cancelled.set()
        while self._ours.engine.step():
            pass
        mx.synchronize()


@contextmanager
def fresh_memory() -> Iterator[int]:
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    yield mx.get_active_memory()
