"""Models for people: all of them at a glance, and all of one."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentmem.sizes import byte_size
from agentmem.v1 import model_pb2, types_pb2
from agentmem.words import printable
from gateway.api.reports import sampling_report, state_name
from gateway.cli.text import FOLD, LINE, RIGHT, described, table

Row = tuple[str, str]

_OPTIONAL = ("other models", "arrays")
"""Parts of the memory that are shown where there are any."""


def models_table(found: Sequence[model_pb2.Model]) -> Table:
    """Return the models, so that only names and notes wrap on 80 columns. `errors_of` says why some are failed."""
    figures = dict.fromkeys(("context", "weights", "4K agents"), RIGHT)
    rows = (
        (
            model.model_id,
            state_name(model),
            f"{model.context_length:,}" if model.context_length else "",
            byte_size(model.weight_bytes) if model.weight_bytes else "",
            f"{model.memory.agents_4k:,}" if model.HasField("memory") else "",
            "; ".join(_notes(model)),
        )
        for model in found
    )
    return table({"model": {**FOLD, "min_width": 12}, "state": LINE, **figures, "note": FOLD}, rows)


def errors_of(found: Sequence[model_pb2.Model]) -> Iterator[str]:
    """Yield a line for each model that could not be loaded the last time."""
    for model in found:
        if model.error:
            yield f"{printable(model.model_id)}: {printable(model.error)}"


def described_model(model: model_pb2.Model) -> Group:
    """Return all of one model."""
    parts: list[RenderableType] = [Text(printable(model.model_id), style="bold"), described(about(model))]
    if model.HasField("memory"):
        loaded = model.state in (model_pb2.MODEL_STATE_LOADED, model_pb2.MODEL_STATE_DRAINING)
        title = "memory" if loaded else "memory, were it loaded beside the pinned models"
        parts += ["", Text(title, style="bold"), arithmetic(model.memory), described(capacity(model.memory))]
    return Group(*parts)


def about(model: model_pb2.Model) -> Iterator[Row]:
    """Yield what the model is, in names and values; only what is known."""
    yield "state", ", ".join([state_name(model), *(note for note in _standing(model))])
    for name in ("error", "source", "adapter"):
        if value := getattr(model, name):
            yield name, value
    if model.architecture:
        yield "architecture", model.architecture + (f", computes in {model.dtype}" if model.dtype else "")
    if model.context_length:
        yield "context", f"{model.context_length:,} tokens"
    if model.full_layers:
        yield "layers", _layers(model)
        yield "heads", f"{model.kv_heads} of KV; keys {model.k_head_dim} wide, values {model.v_head_dim}"
    if model.kv_bits:
        per_token = byte_size(model.kv_bytes_per_token)
        scheme = f", {model.kv_scheme}" if model.kv_scheme else ""
        yield "KV", f"{model.kv_bits} bits in groups of {model.kv_group_size}{scheme}, {per_token} per token"
    if model.kv_bits_reason:
        yield "bits", model.kv_bits_reason
    for found in model.kv_bits_measured:
        yield f"with {found.kv_bits} bits", measured(found)
    if model.kv_bits_measured:
        yield "quality", quality(model)
    if model.HasField("calibration"):
        yield "calibration", calibration(model.calibration)
    for path in model.attention_paths:
        note = f"; {path.note}" if path.note else ""
        yield path.phase, f"{path.path}, off by {path.relative_error:.1g} at most{note}"
    if model.HasField("sampling"):
        yield "sampling", sampling(model.sampling)
    if model.tool_parser:
        yield "tools", f"written as {model.tool_parser} does"
    if model.fingerprint:
        yield "fingerprint", model.fingerprint


def sampling(defaults: types_pb2.Sampling) -> str:
    """Return how tokens are chosen where a request does not say."""
    if not defaults.temperature:
        return "greedy unless a request says otherwise"
    neutral = types_pb2.Sampling(top_p=1, top_k=0, min_p=0, repetition_penalty=1)
    said = sampling_report(defaults)
    named = (name for name, value in said.items() if name == "temperature" or value != getattr(neutral, name))
    return ", ".join(f"{name} {said[name]:g}" for name in named) + " unless a request says otherwise"


def calibration(means: model_pb2.Calibration) -> str:
    """Return which means K and V are centred on, and how far from zero they are at most."""
    sides = (("K", means.largest_k_means), ("V", means.largest_v_means))
    largest = " and ".join(
        f"{max(by_layer):.3g} of {side} (layer {list(by_layer).index(max(by_layer))})" for side, by_layer in sides
    )
    return f"{means.digest[:12]}, means up to {largest}"


def measured(found: model_pb2.KVBitsMeasurement) -> str:
    """Return what the check of quantized KV found with some bits."""
    nats = f"{found.kl_divergence:.2g} nats, {found.kl_divergence_p99:.2g} at 99 %"
    return f"KL divergence {nats}, {byte_size(found.bytes_per_token)} per token"


def quality(model: model_pb2.Model) -> str:
    """Return what to do by the check of quantized KV."""
    bits, best = model.kv_bits, model.recommended_kv_bits
    if not _is_good(model):
        setting = f'kv_bits = "{best}" in the registry file, or --kv-bits {best}'
        return f"take {best} bits: {setting}" if best else "no bits are good for this model"
    sizes = {found.kv_bits: found.bytes_per_token for found in model.kv_bits_measured}
    fewer = best and sizes[best] < sizes[bits]
    return f"{bits} bits are good" + (f", and so are {best}" if fewer else "")


def arithmetic(memory: model_pb2.ModelMemory) -> Table:
    """Return how the device's memory is divided: what may be used, what each part takes of it, and what that is for."""
    parts = (
        ("weights", memory.weight_bytes, ""),
        ("activations", memory.activation_bytes, "computing, at its peak"),
        ("other models", memory.other_models_bytes, "loaded beside it"),
        ("pool", memory.pool_bytes, "KV of hot agents and running requests"),
        ("arrays", memory.batch_bytes, "K and V of running requests, unpacked"),
    )
    left = memory.usable_bytes - sum(size for _, size, _ in parts)
    rest = "for other models" if left > memory.usable_bytes / 100 else "less than a block"
    rows = [
        ("device", byte_size(memory.device_bytes), ""),
        ("usable", byte_size(memory.usable_bytes), "the rest is for other processes"),
        *((name, f"− {byte_size(size)}", what) for name, size, what in parts if size or name not in _OPTIONAL),
        ("left", f"= {byte_size(max(0, left))}", rest),
    ]
    columns = {"name": {**LINE, "min_width": 12}, "size": {**RIGHT, "min_width": 10}, "what": {"style": "dim"}}
    return table(columns, rows, show_header=False)


def capacity(memory: model_pb2.ModelMemory) -> Iterator[Row]:
    """Yield what fits into the pool."""
    agents = f"{memory.agents_4k:,} of 4,096 tokens, {byte_size(memory.agent_4k_bytes)} each"
    yield "hot agents", f"{agents}; or {memory.pool_tokens:,} tokens"


def _layers(model: model_pb2.Model) -> str:
    kinds = [f"{model.full_layers} with full attention"] if model.full_layers else []
    if model.sliding_layers:
        kinds.append(f"{model.sliding_layers} with a window of {model.sliding_window:,} tokens")
    if model.recurrent_layers:
        kinds.append(f"{model.recurrent_layers} recurrent, {byte_size(model.state_bytes)} of state")
    return ", ".join(kinds)


def _standing(model: model_pb2.Model) -> Iterator[str]:
    if model.is_default:
        yield "default"
    if model.pinned:
        yield "pinned"
    if model.HasField("ttl"):
        yield f"unloaded after {model.ttl.ToTimedelta().total_seconds():g} idle seconds"


def _notes(model: model_pb2.Model) -> Iterator[str]:
    yield from _standing(model)
    if "+" in model.model_id or model.adapter:
        yield "adapter"
    if model.kv_bits_measured and not _is_good(model):
        best = model.recommended_kv_bits
        yield f'kv_bits = "{best}" recommended' if best else "loses quality with quantized KV"


def _is_good(model: model_pb2.Model) -> bool:
    """Whether its bits were measured, and are good."""
    return any(found.good for found in model.kv_bits_measured if found.kv_bits == model.kv_bits)
