"""Judges whether a network's layers can run over quantized KV, by its caches and one lazy pass. Computes nothing.
Engine thread.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from agentmem.errors import AgentmemError, FailedPrecondition
from agentmem.kv import bits as kv_bits
from agentmem.kv.bits import KVBits
from agentmem.process import logs
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.mlx_lm_adapter import model_classes
from inference_service.engine.network import Network, flat
from inference_service.engine.quantization import BALANCED, ROTATED, KVFormat
from inference_service.families.networks import REFUSED
from inference_service.models.latents import keep_latents
from inference_service.models.probing import ProbeKV, Probes, group_layers, probe_of, state_group

log = logging.getLogger(__name__)

_PROMPTS = ([[0, 0]], [[0]])
"""Several queries, and one."""

_LAYER_KINDS = {"RotatingKVCache": "have a sliding window that keeps the first tokens of the context"}
"""By mlx-lm's cache."""

_MOST_CHARACTERS = 1000
"""Library errors may name all tensors."""

_ADVICE = (
    "take a model of full or sliding-window attention and recurrent layers (Llama, Mistral, Qwen 2, 3 and 3.5, "
    "Gemma 3, GPT-OSS, Granite 4, …), or serve this one with mlx_lm.server, without a memory"
)


@dataclass(frozen=True)
class QuantizationSettings:
    """`bits` None: the fewest good ones, 4 until weights are read. `group_size` None: 64, or 32 if heads are no
    multiple of 64 wide.
    """

    bits: KVBits | None = kv_bits.DEFAULT
    group_size: int | None = None


def judged(
    model: str, network: Any, backend: AttentionBackend, quantization: QuantizationSettings
) -> tuple[Geometry, int]:
    """Return the geometry of KV and the number of logits, with `backend` installed. Raises FailedPrecondition that
    names layers.
    """
    made = make_prompt_cache(network)
    plain = flat(made)
    _check_kinds(model, network, plain)
    with refusing(f"model {model!r} cannot run on this machine, whatever its KV"):
        for tokens in _PROMPTS:
            logits = network(mx.array(tokens), cache=made)
    group_size = quantization.group_size or _group_size(plain)
    bits = quantization.bits or kv_bits.DEFAULT
    probes = _probes(plain, shows_arrays=False)
    problem = _problem(model, Network(network), probes, backend)
    if shows_arrays := bool(problem):
        probes = _probes(plain, shows_arrays=True)
        if problem := _problem(model, Network(network, shows_arrays=True), probes, backend):
            raise _refusal(model, problem)
    try:
        full, sliding = group_layers(probes, group_size)
        states = state_group(probes)
    except ValueError as error:
        raise _refusal(model, str(error)) from error
    first, *others = full or (LayerGroup((), 0, 0, 0),)
    dtype = next((probe.dtype for probe in probes if isinstance(probe, ProbeKV)), logits.dtype)
    packed = bool(full or sliding) and not shows_arrays
    heads, latents = (backend.heads, backend.latents) if packed else (first.kv_heads, False)
    scheme = BALANCED if packed and not latents else ROTATED  # queries are not seen, or K is V
    format = KVFormat(bits.k, bits.v, group_size, scheme, windows=bits.windows if sliding else None)
    geometry = Geometry(heads, dtype, format, first, sliding, states, shows_arrays, latents, tuple(others))
    return geometry, int(logits.shape[-1])


def _problem(model: str, network: Network, probes: Probes, backend: AttentionBackend) -> str:
    """Return why layers cannot run over empty probes, or ""."""
    before = backend.calls
    try:
        with refusing(""):
            for tokens in _PROMPTS:
                network(mx.array(tokens), cache=probes)
    except FailedPrecondition as error:
        words = _words(error.__cause__ or error)
        layer = max(0, sum(not probe.empty() for probe in probes) - 1)
        where = f"layer {layer} ({_layer_class(network.model, layer)})"
        if network.shows_arrays:
            return f"{where} reads its cache in a way of its own ({words})"
        logs.event(log, "a model's attention reads K and V as arrays", logging.DEBUG, model=model, error=words)
        return f"{where} computes attention by itself, over K and V as arrays"
    if network.shows_arrays:
        unused = [layer for layer, probe in enumerate(probes) if probe.empty()]
        return f"layers {_ranges(unused)} of {len(probes)} keep nothing" if unused else ""
    with_kv = [probe for probe in probes if isinstance(probe, ProbeKV)]
    if len({probe.kv_heads for probe in with_kv if not probe.window}) > 1:
        return "layers have different numbers of heads"
    if (seen := backend.calls - before) == len(_PROMPTS) * len(with_kv):
        return ""
    how = "by themselves, over K and V as arrays" if seen < 2 * len(with_kv) else "several times over one cache"
    return f"layers compute attention {how}"


def built(model: str, config: dict[str, Any], backend: AttentionBackend) -> Any:
    """Build a network by config.json, uncomputed. Raises what its code raises."""
    model_class, arguments = model_classes(config)
    network = model_class(arguments.from_dict(config))
    keep_latents(model, network, backend)
    backend.install(network)
    return network


@contextmanager
def refusing(message: str) -> Iterator[None]:
    """Raise FailedPrecondition for whatever a model's code raises, even SystemExit; our own errors pass."""
    try:
        yield
    except AgentmemError:
        raise
    except (Exception, SystemExit) as error:
        raise FailedPrecondition(f"{message}: {_words(error)}") from error


def _words(error: BaseException) -> str:
    """Return an error in one line, maybe with its type."""
    if isinstance(error, SystemExit):
        return f"its code ends the process ({error.code!r}); does it need another package?"
    if "trust_remote_code" in str(error):
        return (
            "it needs code of its own repository, which is never run; take a conversion that has a tokenizer.json and "
            "a model type of mlx-lm"
        )
    text = shorten(str(error), _MOST_CHARACTERS, placeholder=" …")
    if isinstance(error, OSError | ValueError | ImportError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _refusal(model: str, problem: str) -> FailedPrecondition:
    return FailedPrecondition(f"model {model!r} cannot run with quantized KV: {problem}; {_ADVICE}")


def _check_kinds(model: str, network: Any, caches: Sequence[Any]) -> None:
    if wrong := REFUSED.get(type(network).__module__):
        raise _refusal(model, wrong)
    others: dict[str, list[int]] = {}
    for layer, cache in enumerate(caches):
        if probe_of(cache) is None:
            others.setdefault(type(cache).__name__, []).append(layer)
    if not caches:
        raise _refusal(model, "it has no layers that keep anything")
    said = []
    for name, layers in others.items():
        does = _LAYER_KINDS.get(name, "have a cache of the model's own")
        said.append(f"layers {_ranges(layers)} of {len(caches)} ({_layer_class(network, layers[0])}, {name}) {does}")
    if said:
        raise _refusal(model, f"{' and '.join(said)}, and such layers' memory is not kept yet")


def _ranges(numbers: Sequence[int]) -> str:
    """Return increasing numbers as "0-2, 4"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _layer_class(network: Any, layer: int) -> str:
    layers = getattr(network, "layers", ())
    return type(layers[layer]).__name__ if 0 <= layer < len(layers) else type(network).__name__


def _group_size(caches: Sequence[Any]) -> int:
    with_kv = [cache for cache in caches if type(cache) is not ArraysCache]
    widths = [int(part.shape[-1]) for cache in with_kv for part in (cache.keys, cache.values)]
    return 32 if any(width % 64 for width in widths) else 64


def _probes(caches: Sequence[Any], *, shows_arrays: bool) -> Probes:
    return [probe for cache in caches if (probe := probe_of(cache, shows_arrays=shows_arrays)) is not None]
