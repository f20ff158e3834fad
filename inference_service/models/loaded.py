"""Opened and loaded models, and the steps between. Engine thread."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import mlx.core as mx
from mlx.utils import tree_flatten

from agentmem.errors import FailedPrecondition
from agentmem.kv.hints import TurnHints
from inference_service.engine.attention import PathReport
from inference_service.engine.batching import BatchEngine
from inference_service.engine.calibration import Calibration
from inference_service.engine.codec import KVCodec
from inference_service.engine.network import Network
from inference_service.engine.paged.kernels import Kernels
from inference_service.engine.paged.store import KVStore
from inference_service.engine.quality import Quality
from inference_service.models.fingerprint import kv_fingerprint
from inference_service.models.fitting import Needs, check_sizes
from inference_service.models.kv_setup import KVSetup
from inference_service.models.opening import ModelInfo, ModelSpec
from inference_service.pool.memory import ModelMemory, Sizes
from inference_service.text.grammar import Grammars

log = logging.getLogger(__name__)

_PIECE_BYTES = 256 << 20
"""A tenth of a second from a fast disk."""


@dataclass(frozen=True)
class OpenedModel:
    """A network without weights, by its files' fingerprint."""

    info: ModelInfo
    network: Network
    fingerprint: str
    needs: Needs


@dataclass(frozen=True, eq=False)
class LoadedModel(ModelInfo):
    """A model that serves.

    `fingerprint` is its KV's, `model_fingerprint` its files'. `engine`, `arenas` and `codecs` are the engine thread's,
    `memory` the event loop's.
    """

    fingerprint: str
    model_fingerprint: str
    setup: KVSetup
    codecs: tuple[KVCodec, ...]
    activation_bytes: int
    paths: tuple[PathReport, ...]
    engine: BatchEngine
    arenas: KVStore
    memory: ModelMemory

    @property
    def calibration(self) -> Calibration | None:
        return self.setup.calibration

    @property
    def quality(self) -> Quality | None:
        return self.setup.quality

    @cached_property
    def grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.vocab_size)

    @property
    def taken_bytes(self) -> int:
        return taken_bytes(self, self.activation_bytes, self.memory.sizes)

    @property
    def promised_bytes(self) -> int:
        return self.weight_bytes + self.activation_bytes + self.memory.promised_bytes

    def prepare(self) -> None:
        """Compute lookups, up to a second. On neither event loop nor engine thread."""
        self.grammars.prepare()
        _ = self.renderer.transient_stops

    def release(self) -> None:
        """Free memory. Engine thread."""
        self.engine.close()
        self.arenas.close()
        for codec in self.codecs:
            codec.release()
        mx.clear_cache()


def taken_bytes(info: ModelInfo, activation_bytes: int, memory: Sizes) -> int:
    return info.weight_bytes + activation_bytes + memory.pool_bytes(info.geometry) + memory.batch_bytes


def read_weights(info: ModelInfo, network: Network) -> Iterator[float]:
    """Read a piece for each `next`, and yield the share. Raises FailedPrecondition. Engine thread."""
    piece: list[mx.array] = []
    done = 0
    for _, array in tree_flatten(network.model.parameters()):
        piece.append(array)
        done += array.nbytes
        if sum(each.nbytes for each in piece) >= _PIECE_BYTES:
            _evaluate(info.spec, piece)
            piece = []
            yield done / info.weight_bytes
    _evaluate(info.spec, piece)
    yield 1.0


def _evaluate(spec: ModelSpec, piece: list[mx.array]) -> None:
    try:
        mx.eval(piece)
    except (RuntimeError, ValueError, MemoryError) as error:
        raise FailedPrecondition(f"the weights of model {spec.model_id!r} cannot be read: {error}") from error


def take_memory(
    opened: OpenedModel,
    paths: tuple[PathReport, ...],
    kernels: Kernels,
    setup: KVSetup,
    memory: Sizes,
    activation_bytes: int,
    hints: TurnHints,
    others_decode: Callable[[], bool] = lambda: False,
) -> LoadedModel:
    """Take memory for KV. Engine thread. Raises FailedPrecondition."""
    info, geometry, calibration = opened.info, opened.info.geometry, setup.calibration
    check_sizes(info, memory)
    try:
        codecs = tuple(calibration.codecs(geometry)) if calibration else geometry.codecs()
        segments = memory.segments(geometry)
        at_once = segments[0].blocks, segments[1].blocks
        arenas = KVStore(geometry, memory.space.blocks, memory.space.pieces, codecs, at_once, kernels)
        if kernels.traced:
            arenas.trace(opened.network.computed)
    except (RuntimeError, MemoryError) as error:
        raise FailedPrecondition(
            f"the device has no memory for a pool of {memory.space.blocks} blocks: {error}; set --pool-bytes lower"
        ) from error
    engine = BatchEngine(
        model=opened.network,
        tokenizer=info.tokenizer,
        store=arenas,
        others_decode=others_decode,
        work=info.work,
    )
    return LoadedModel(
        **{field.name: getattr(info, field.name) for field in fields(info)},
        fingerprint=kv_fingerprint(opened.fingerprint, geometry, calibration),
        model_fingerprint=opened.fingerprint,
        setup=setup,
        codecs=codecs,
        activation_bytes=activation_bytes,
        paths=paths,
        engine=engine,
        arenas=arenas,
        memory=ModelMemory(geometry, memory, hints, arrays=arenas.by_arrays),
    )
