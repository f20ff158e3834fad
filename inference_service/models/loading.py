"""Loading a model: weights, tokenizer, geometry, self-test. What cannot run in Q4 is refused by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import hf_repo_to_path

from agentmem.blockfile import BLOCK_TOKENS
from agentmem.errors import FailedPrecondition
from inference_service.engine.attention import AttentionSeam, PathReport, PathSpeeds
from inference_service.engine.batching import BatchEngine
from inference_service.engine.caches import QuantizedKVCache, SlidingQuantizedKVCache
from inference_service.engine.device import usable_bytes
from inference_service.engine.geometry import Caches, Geometry, group_layers, merged
from inference_service.engine.tensors import Arenas
from inference_service.models.fingerprint import ContentHashes, fingerprint
from inference_service.pool.memory import ModelMemory
from inference_service.pool.sizing import sizes
from inference_service.text.grammar import Grammars
from inference_service.text.rendering import Renderer
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


@dataclass(frozen=True)
class Quantization:
    """How KV is quantized."""

    bits: int = 4
    group_size: int = 64


@dataclass(frozen=True)
class LoadedModel:
    """A model that serves. `vocab_size` is how many logits it has; the tokenizer may know more or fewer tokens.
    `call_syntax` is how it writes calls of tools, where mlx-lm knows a parser for it.

    `engine`, `arenas` and `new_caches` belong to the engine thread, `memory` to the event loop, all else to anyone.
    """

    model_id: str
    architecture: str
    context_length: int
    vocab_size: int
    geometry: Geometry
    fingerprint: str
    weight_bytes: int
    paths: tuple[PathReport, ...]
    tokenizer: Tokenizer
    renderer: Renderer
    grammars: Grammars
    call_syntax: CallSyntax | None
    engine: BatchEngine
    arenas: Arenas
    memory: ModelMemory

    def new_caches(self) -> Caches:
        """Empty caches, one per layer."""
        return self.geometry.new_caches()


def load(
    model_id: str,
    source: str,
    *,
    dtype: str = "auto",
    quantization: Quantization = Quantization(),
    context_length: int | None = None,
    pool_bytes: int | None = None,
    batch_bytes: int | None = None,
    hashes: ContentHashes,
    speeds: PathSpeeds | None = None,
) -> LoadedModel:
    """Load the model from a local directory, or by its hub id. Engine thread; takes seconds to minutes.

    `dtype` "auto" is float32 on CPU, where everything else is slower, and the model's own elsewhere. `pool_bytes` and
    `batch_bytes` are taken from what the device has left after the weights, unless they are given. Without `speeds`,
    decode paths are chosen without measuring. Raises FailedPrecondition for a model that cannot run in Q4 or in this
    memory, and for files that are missing or damaged.
    """
    try:
        model, wrapper, config = mlx_lm.load(source, lazy=True, return_config=True)
        directory = Path(source) if Path(source).is_dir() else hf_repo_to_path(source)
        backend = wrapper._tokenizer.backend_tokenizer
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, ImportError) as error:
        raise FailedPrecondition(f"model {model_id!r} cannot be loaded from {source}: {error}") from error
    caches = _q4_caches(model_id, model, quantization)
    if dtype == "auto" and mx.default_device().type == mx.DeviceType.cpu:
        dtype = "float32"
    if dtype != "auto":
        model.set_dtype(DTYPES[dtype])
    mx.eval(model.parameters())
    tokenizer = Tokenizer(backend, wrapper.eos_token_ids)
    seam = AttentionSeam()
    seam.install(model)
    geometry, vocab_size = _measure(model_id, model, seam, caches, quantization)
    paths = seam.self_test(geometry, speeds)
    weight_bytes = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    context_length = context_length or _context_length(config)
    memory = sizes(usable_bytes() - weight_bytes, geometry, context_length, pool_bytes, batch_bytes)
    least = geometry.window_bytes + BLOCK_TOKENS * geometry.bytes_per_token
    if not memory.space.blocks or memory.space.pieces < geometry.window_pieces or memory.batch_bytes < 2 * least:
        raise FailedPrecondition(
            f"model {model_id!r} leaves {memory.space.blocks} blocks of memory for agents' KV and {memory.batch_bytes} "
            "bytes for running requests; take a smaller model, or set --pool-bytes and --batch-bytes"
        )
    grammars = Grammars(tokenizer, vocab_size)
    grammars.prepare()
    return LoadedModel(
        model_id=model_id,
        architecture=str(config.get("model_type", type(model).__module__)),
        context_length=context_length,
        vocab_size=vocab_size,
        geometry=geometry,
        fingerprint=_fingerprint(directory, geometry, hashes),
        weight_bytes=weight_bytes,
        paths=tuple(paths),
        tokenizer=tokenizer,
        renderer=Renderer(
            tokenizer,
            wrapper.apply_chat_template if wrapper.has_chat_template else None,
            checkpoints=geometry.sliding is not None,
        ),
        grammars=grammars,
        call_syntax=_call_syntax(wrapper),
        engine=BatchEngine(model, tokenizer, geometry.new_caches, geometry.bytes_per_token, weight_bytes),
        arenas=Arenas(geometry, memory.space.blocks, memory.space.pieces),
        memory=ModelMemory(geometry, weight_bytes, memory),
    )


def _q4_caches(model_id: str, model: Any, quantization: Quantization) -> Caches:
    """Empty Q4 caches for the model's layers, by the kinds of cache that it would make itself."""
    caches: Caches = []
    for cache in make_prompt_cache(model):
        if type(cache) is KVCache:
            caches.append(QuantizedKVCache(quantization.bits, quantization.group_size))
        elif type(cache) is RotatingKVCache and not cache.keep:
            caches.append(SlidingQuantizedKVCache(cache.max_size, quantization.bits, quantization.group_size))
        else:
            raise FailedPrecondition(
                f"model {model_id!r} has layers whose cache ({type(cache).__name__}) cannot be kept in Q4; "
                "models whose layers have full or sliding-window attention can"
            )
    return caches


def _measure(
    model_id: str, model: Any, seam: AttentionSeam, caches: Caches, quantization: Quantization
) -> tuple[Geometry, int]:
    """The geometry and the number of logits, from a first update; proves that every layer comes through the seam."""
    try:
        for tokens in ([[0, 0]], [[0]]):
            logits = model(mx.array(tokens), cache=caches)
            mx.eval(logits)
        mx.eval(model(mx.array([[0]]), cache=merged(caches)))
        full, sliding = group_layers(caches)
    except (ValueError, NotImplementedError, AttributeError, TypeError) as error:
        raise FailedPrecondition(f"model {model_id!r} cannot run over a Q4 cache: {error}") from error
    if seam.calls != 3 * len(caches):
        raise FailedPrecondition(f"model {model_id!r} computes attention outside the Q4 path on some layers")
    dtype = caches[full.layers[0]].buffers.both()[0].scales.dtype
    geometry = Geometry(seam.heads, dtype, quantization.bits, quantization.group_size, full, sliding)
    return geometry, int(logits.shape[-1])


def _call_syntax(wrapper: TokenizerWrapper) -> CallSyntax | None:
    """How the model writes calls of tools, as mlx-lm tells of its settings, template or vocabulary."""
    if not wrapper.has_tool_calling or not wrapper.tool_call_start:
        return None
    name = wrapper.init_kwargs["tool_parser_type"]
    end = wrapper.tool_call_end or ""
    return CallSyntax(name, wrapper.tool_call_start.encode(), end.encode(), wrapper.tool_parser)


def _context_length(config: dict[str, Any]) -> int:
    text = config.get("text_config", config)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(text.get(name), int):
            return int(text[name])
    raise FailedPrecondition("config.json does not say how long the context is; set --context-length")


def _fingerprint(directory: Path, geometry: Geometry, hashes: ContentHashes) -> str:
    files = [*directory.glob("model*.safetensors"), directory / "config.json"]
    return fingerprint(
        ((path.name, hashes.of(path)) for path in files),
        adapter="",
        dtype=geometry.dtype,
        full=geometry.full,
        sliding=geometry.sliding,
        bits=geometry.bits,
        group_size=geometry.group_size,
    )
