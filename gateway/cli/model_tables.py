"""The table of models."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from agentmem.console import FOLD, LINE, RIGHT, table
from agentmem.sizes import byte_size
from agentmem.v1 import model_pb2
from agentmem.words import printable
from gateway.api.reports import state_name


def models_table(found: Sequence[model_pb2.Model]) -> Table:
    """Return the models; only names and notes wrap at 80 columns."""
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
    for model in found:
        if model.error:
            yield f"{printable(model.model_id)}: {printable(model.error)}"


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
    return any(found.good for found in model.kv_bits_measured if found.kv_bits == model.kv_bits)
