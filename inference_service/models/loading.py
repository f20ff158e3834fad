"""Loading a model: from an opened one to one that serves, in steps between which others' streams can go on.

    open → read the weights, piece by piece → prove attention → measure activations → take the memory for KV

Each step is a call on the engine thread. What fails leaves nothing behind but what the garbage collector takes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from agentmem.blockfile import BLOCK_TOKENS
from agentmem.errors import FailedPrecondition
from agentmem.hints import TurnHints
from agentmem.sizes import byte_size
from inference_service.engine.activations import dequantized_bytes
from inference_service.engine.attention import AttentionSeam, PathReport, PathSpeeds
from inference_service.engine.batching import BatchEngine
from inference_service.engine.device import usable_bytes
from inference_service.engine.geometry import Caches, Geometry, merged
from inference_service.engine.quality import Quality
from inference_service.engine.tensors import Arenas
from inference_service.memory.chunks import LARGEST_CHUNK
from inference_service.models.capability import Quantization
from inference_service.models.fingerprint import ContentHashes, fingerprint
from inference_service.models.opening import ModelSpec, OpenedModel, Outline, open_network, open_text
from inference_service.models.residency import Needs
from inference_service.pool.memory import ModelMemory
from inference_service.pool.sizing import TYPICAL_TOKENS, Sizes, sizes
from inference_service.text.grammar import Grammars
from inference_service.text.reasoning import ReasoningFormat
from inference_service.text.rendering import Renderer
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax

_PIECE_BYTES = 256 << 20
"""Weights that are read at once: a tenth of a second from a fast disk."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that serves. `vocab_size` is how many logits it has; the tokenizer may know more or fewer tokens.
    `call_syntax` is how it writes calls of tools, where mlx-lm knows a parser for it, and `reasoning` how it sets that
    apart from its answer, where it does. `activation_bytes` is what computing takes at its peak besides weights and KV.
    `quality` is None where it was not asked for.

    `engine`, `arenas` and `new_caches` belong to the engine thread, `memory` to the event loop, all else to anyone.
    """

    model_id: str
    architecture: str
    context_length: int
    vocab_size: int
    geometry: Geometry
    fingerprint: str
    weight_bytes: int
    activation_bytes: int
    paths: tuple[PathReport, ...]
    quality: Quality | None
    tokenizer: Tokenizer
    renderer: Renderer
    grammars: Grammars
    call_syntax: CallSyntax | None
    reasoning: ReasoningFormat | None
    engine: BatchEngine
    arenas: Arenas
    memory: ModelMemory

    @property
    def taken_bytes(self) -> int:
        """All that it takes of the device's memory, or may take while it runs."""
        return self.weight_bytes + self.activation_bytes + self.arenas.nbytes + self.memory.sizes.batch_bytes

    def new_caches(self) -> Caches:
        """Empty caches, one per layer."""
        return self.geometry.new_caches()

    def release(self) -> None:
        """Give weights and arenas back. Nobody may use the model any more. Engine thread."""
        self.engine.close()
        self.arenas.close()
        mx.clear_cache()


def fingerprint_of(spec: ModelSpec, geometry: Geometry, hashes: ContentHashes) -> str:
    """The fingerprint by what is in the files now. Reads those that are new, at the disk's speed; no MLX.

    Raises OSError, also where the weights are gone: what is left does not name the model.
    """
    if len(spec.files) < 2:
        raise FileNotFoundError(f"{spec.directory} has no weights any more")
    adapter = [(path.name, hashes.of(path)) for path in spec.adapter_files]
    return fingerprint(
        ((path.name, hashes.of(path)) for path in spec.files),
        adapter=str(adapter) if adapter else "",
        dtype=geometry.dtype,
        full=geometry.full,
        sliding=geometry.sliding,
        bits=geometry.bits,
        group_size=geometry.group_size,
    )


def read_weights(opened: OpenedModel) -> Iterator[float]:
    """Read the weights, a piece for each `next`, which gives the share that is read. Engine thread.

    Raises FailedPrecondition where they cannot be read.
    """
    piece: list[mx.array] = []
    done = 0
    for _, array in tree_flatten(opened.network.parameters()):
        piece.append(array)
        done += array.nbytes
        if sum(each.nbytes for each in piece) >= _PIECE_BYTES:
            _evaluate(opened.outline.spec, piece)
            piece = []
            yield done / opened.outline.weight_bytes
    _evaluate(opened.outline.spec, piece)
    yield 1.0


def prove(opened: OpenedModel, seam: AttentionSeam, speeds: PathSpeeds | None) -> tuple[PathReport, ...]:
    """Run the network once in both phases, and the self-test of attention, which chooses decode paths. Engine thread.

    Raises FailedPrecondition.
    """
    spec, caches = opened.outline.spec, opened.outline.geometry.new_caches()
    try:
        for tokens in ([[0, 0]], [[0]]):
            mx.eval(opened.network(mx.array(tokens), cache=caches))
        mx.eval(opened.network(mx.array([[0]]), cache=merged(caches)))
    except (RuntimeError, ValueError) as error:
        raise FailedPrecondition(f"model {spec.model_id!r} cannot run on this backend: {error}") from error
    return tuple(seam.self_test(opened.outline.geometry, speeds))


def least_activation_bytes(outline: Outline) -> int:
    """What computing takes at least: the values of one layer for the largest chunk, where nothing was measured yet."""
    chunk = LARGEST_CHUNK * outline.layer_width * int(outline.geometry.dtype.size)
    return chunk + dequantized_bytes(outline.geometry, outline.context_length)


def needs_of(outline: Outline, activation_bytes: int, pool_bytes: int | None, batch_bytes: int | None) -> Needs:
    """What the model takes. What is configured for KV is needed."""
    geometry = outline.geometry
    useful = agent_bytes(geometry, outline.context_length)
    given = [each for each in (pool_bytes, batch_bytes) if each is not None]
    return Needs(
        weight_bytes=outline.weight_bytes,
        activation_bytes=activation_bytes,
        least_kv_bytes=sum(given) if len(given) == 2 else 3 * _least_bytes(geometry),
        useful_kv_bytes=sum(given) if len(given) == 2 else 4 * useful,
    )


def agent_bytes(geometry: Geometry, context_length: int) -> int:
    """KV of one agent of 4096 tokens, or of as many as the context holds."""
    return geometry.window_bytes + min(TYPICAL_TOKENS, context_length) * geometry.bytes_per_token


def _least_bytes(geometry: Geometry) -> int:
    """KV of the shortest agent: one block, and a window."""
    return geometry.window_bytes + BLOCK_TOKENS * geometry.bytes_per_token


def check_sizes(outline: Outline, memory: Sizes) -> None:
    """Raise FailedPrecondition for memory in which no request could run."""
    geometry, least = outline.geometry, _least_bytes(outline.geometry)
    if not memory.space.blocks or memory.space.pieces < geometry.window_pieces or memory.batch_bytes < 2 * least:
        raise FailedPrecondition(
            f"model {outline.spec.model_id!r} has {memory.space.blocks} blocks of memory for agents' KV and "
            f"{byte_size(memory.batch_bytes)} for running requests, too little for one; take a smaller model, or set "
            "--pool-bytes and --batch-bytes"
        )


def finish(
    opened: OpenedModel,
    paths: tuple[PathReport, ...],
    quality: Quality | None,
    memory: Sizes,
    activation_bytes: int,
    fingerprint: str,
    hints: TurnHints,
    others_decode: Callable[[], bool] = lambda: False,
) -> LoadedModel:
    """Take the memory for KV. Engine thread. Raises FailedPrecondition where it is too little, or cannot be had."""
    outline = opened.outline
    check_sizes(outline, memory)
    geometry, text = outline.geometry, outline.text
    try:
        arenas = Arenas(geometry, memory.space.blocks, memory.space.pieces)
        arenas.warm_up()
    except (RuntimeError, MemoryError) as error:
        raise FailedPrecondition(
            f"the device has no memory for a pool of {memory.space.blocks} blocks: {error}; set --pool-bytes lower"
        ) from error
    grammars = Grammars(text.tokenizer, outline.vocab_size)
    return LoadedModel(
        model_id=outline.spec.model_id,
        architecture=outline.architecture,
        context_length=text.context_length,
        vocab_size=outline.vocab_size,
        geometry=geometry,
        fingerprint=fingerprint,
        weight_bytes=outline.weight_bytes,
        activation_bytes=activation_bytes,
        paths=paths,
        quality=quality,
        tokenizer=text.tokenizer,
        renderer=outline.renderer,
        grammars=grammars,
        call_syntax=text.call_syntax,
        reasoning=text.reasoning,
        engine=BatchEngine(
            opened.network,
            text.tokenizer,
            geometry.new_caches,
            geometry.bytes_per_token,
            outline.weight_bytes,
            others_decode,
        ),
        arenas=arenas,
        memory=ModelMemory(geometry, outline.weight_bytes, memory, hints),
    )


def load(
    model_id: str,
    source: str,
    *,
    dtype: str = "auto",
    quantization: Quantization | None = None,
    context_length: int | None = None,
    pool_bytes: int | None = None,
    batch_bytes: int | None = None,
    hashes: ContentHashes,
    speeds: PathSpeeds | None = None,
    adapter: str | None = None,
) -> LoadedModel:
    """Load a model from a directory, alone on the device, all steps in one. Engine thread; seconds to minutes.

    Without `speeds`, decode paths are chosen without measuring; activations are not measured. Raises FailedPrecondition
    for a model that cannot run in Q4 or in this memory, and for files that are missing or damaged.
    """
    place = Path(adapter) if adapter else None
    spec = ModelSpec(model_id, Path(source), place, dtype, quantization or Quantization(), context_length)
    seam = AttentionSeam()
    opened = open_network(spec, open_text(spec), seam)
    for _ in read_weights(opened):
        pass
    paths = prove(opened, seam, speeds)
    free = usable_bytes() - opened.outline.weight_bytes
    memory = sizes(free, opened.outline.geometry, opened.outline.context_length, pool_bytes, batch_bytes)
    named = fingerprint_of(spec, opened.outline.geometry, hashes)
    loaded = finish(opened, paths, None, memory, 0, named, TurnHints())
    loaded.grammars.prepare()
    return loaded


def _evaluate(spec: ModelSpec, piece: list[mx.array]) -> None:
    try:
        mx.eval(piece)
    except (RuntimeError, ValueError, MemoryError) as error:
        raise FailedPrecondition(f"the weights of model {spec.model_id!r} cannot be read: {error}") from error
