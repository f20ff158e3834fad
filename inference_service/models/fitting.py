"""Arithmetic of the device's memory. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from agentmem.errors import FailedPrecondition
from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.sizes import byte_size
from inference_service.engine.computing import Cost
from inference_service.engine.device import on_cuda
from inference_service.engine.geometry import Geometry
from inference_service.models.opening import ModelInfo, ModelShape
from inference_service.pool.memory import TYPICAL_TOKENS, Sizes, agents_that_fit, sizes
from inference_service.settings import WorkerSettings

LEAST_CONTEXT = 1024
"""A shorter context is not worth a load."""
_COMPUTING_SHARE = 4
"""Computing gets a fourth of what weights leave, or what the shortest chunks need."""

Sized = ModelInfo | ModelShape


@dataclass(frozen=True)
class KVLimits:
    pool_bytes: int | None = None
    typical_tokens: int = TYPICAL_TOKENS
    context_length: int | None = None

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        return cls(settings.pool_bytes, settings.typical_tokens, settings.context_length)

    def sizes(self, free_bytes: int, geometry: Geometry, context_length: int) -> Sizes:
        given = self.pool_bytes, self.typical_tokens
        return sizes(free_bytes, geometry, context_length, *given, arrays=not on_cuda())


@dataclass(frozen=True)
class Needs:
    """Bytes besides agents' KV. `useful_kv_bytes` hold four agents of 4096 tokens."""

    weight_bytes: int
    activation_bytes: int
    least_kv_bytes: int
    useful_kv_bytes: int

    @property
    def fixed_bytes(self) -> int:
        return self.weight_bytes + self.activation_bytes


def needs_of(model: Sized, context_length: int, usable_bytes: int, pool_bytes: int | None = None) -> Needs:
    geometry = model.geometry
    return Needs(
        weight_bytes=model.weight_bytes,
        activation_bytes=_for_computing(model.cost, context_length, usable_bytes - model.weight_bytes),
        least_kv_bytes=_kv_bytes(geometry, BLOCK_TOKENS) if pool_bytes is None else pool_bytes,
        useful_kv_bytes=4 * agent_bytes(geometry, context_length) if pool_bytes is None else pool_bytes,
    )


def _for_computing(cost: Cost, context_length: int, left: int) -> int:
    """Return the largest chunks' need, or less with shorter ones."""
    return min(cost.most(context_length), max(cost.least(context_length), left // _COMPUTING_SHARE))


def agent_bytes(geometry: Geometry, context_length: int) -> int:
    """Return bytes for 4096 tokens, or a shorter context."""
    return _kv_bytes(geometry, min(TYPICAL_TOKENS, context_length))


def _kv_bytes(geometry: Geometry, tokens: int) -> int:
    return geometry.checkpoint_pieces * geometry.piece_bytes + tokens * geometry.bytes_per_token


def check_sizes(info: Sized, memory: Sizes) -> None:
    """Raise FailedPrecondition if no request could run."""
    if not memory.space.blocks or memory.space.pieces < info.geometry.checkpoint_pieces:
        raise FailedPrecondition(
            f"model {info.model_id!r} has {memory.space.blocks} blocks of memory for agents' KV, too little for one "
            "request; take a smaller model, or set --pool-bytes"
        )


@dataclass(frozen=True)
class Resident:
    """A loaded model's bytes; `last_used` is monotonic."""

    model_id: str
    taken_bytes: int
    last_used: float
    pinned: bool = False


@dataclass(frozen=True)
class MemoryLimits:
    """`obtainable_bytes`: beside other processes now; None: all."""

    usable_bytes: int
    models: int = 1
    obtainable_bytes: int | None = None

    @property
    def bytes_now(self) -> int:
        return self.usable_bytes if self.obtainable_bytes is None else min(self.usable_bytes, self.obtainable_bytes)


def make_room(model_id: str, needs: Needs, residents: Sequence[Resident], limits: MemoryLimits) -> list[str]:
    """Return the fewest models to unload for four agents of the new one, least recently used first. Raises
    FailedPrecondition.
    """
    staying = list(residents)
    going: list[str] = []
    candidates = iter(sorted((each for each in residents if not each.pinned), key=lambda each: each.last_used))
    while not _fits(needs.fixed_bytes + needs.useful_kv_bytes, staying, limits):
        victim = next(candidates, None)
        if victim is None:
            break
        staying.remove(victim)
        going.append(victim.model_id)
    if not _fits(needs.fixed_bytes + needs.least_kv_bytes, staying, limits):
        raise FailedPrecondition(_what_is_missing(model_id, needs, staying, limits))
    return going


def kv_bytes(needs: Needs, residents: Sequence[Resident], limits: MemoryLimits) -> int:
    """Return the model's share of free memory, even with models that may still come, as on an idle machine: other
    processes may end.
    """
    free = limits.usable_bytes - sum(each.taken_bytes for each in residents) - needs.fixed_bytes
    return max(0, free // max(1, limits.models - len(residents)))


def _fits(wanted: int, residents: Sequence[Resident], limits: MemoryLimits) -> bool:
    return len(residents) < limits.models and wanted <= _free(residents, limits)


def _free(residents: Sequence[Resident], limits: MemoryLimits) -> int:
    return limits.bytes_now - sum(each.taken_bytes for each in residents)


def _what_is_missing(model_id: str, needs: Needs, pinned: Sequence[Resident], limits: MemoryLimits) -> str:
    names = ", ".join(repr(each.model_id) for each in pinned)
    if len(pinned) >= limits.models:
        most = f"{limits.models} may be loaded at once"
        return f"model {model_id!r} cannot be loaded: {most}; unpin one of {names}, or raise --loaded-models"
    taken = sum(each.taken_bytes for each in pinned)
    held = f", of which pinned models ({names}) take {byte_size(taken)}" if pinned else ""
    now = max(0, limits.bytes_now)
    others = f" as long as other processes have the rest of {byte_size(limits.usable_bytes)}"
    missing = needs.fixed_bytes + needs.least_kv_bytes - _free(pinned, limits)
    return (
        f"model {model_id!r} does not fit: its weights take {byte_size(needs.weight_bytes)}, computing "
        f"{byte_size(needs.activation_bytes)} and the least KV {byte_size(needs.least_kv_bytes)}; models may take "
        f"{byte_size(now)}{others if now < limits.usable_bytes else ''}{held}; {byte_size(missing)} are missing. "
        "Take a smaller or quantized model, or make memory free"
    )


@dataclass(frozen=True)
class Fit:
    """A model's memory with estimated computing. `agents` of `tokens` tokens are hot at once; `refusal` or ""."""

    context_length: int
    own_context_length: int
    needs: Needs
    pool_bytes: int
    batch_bytes: int
    agents: int
    tokens: int
    agent_bytes: int
    refusal: str = ""

    @property
    def context(self) -> str:
        own = f" of {self.own_context_length:,}" if self.context_length < self.own_context_length else ""
        return f"context {self.context_length:,}{own} tokens"


def fit(model: Sized, limits: MemoryLimits, given: KVLimits) -> Fit:
    fitting, least = fitting_context(model, limits, given), min(model.own_context_length, LEAST_CONTEXT)
    context = given.context_length or max(fitting, least)
    geometry = model.geometry
    needs, memory = _divided(model, context, limits, given)
    tokens = min(TYPICAL_TOKENS, context)
    refusal = ""
    try:
        make_room(model.model_id, needs, (), limits)
        check_sizes(model, memory)
        if given.context_length is None and fitting < least:
            raise FailedPrecondition(
                f"model {model.model_id!r} does not fit: besides it there is memory for a context of {fitting} tokens; "
                "take a smaller or quantized model"
            )
    except FailedPrecondition as error:
        refusal = error.message
        if 0 < fitting < context:
            refusal = f"{refusal}; or set --context-length to {fitting} or less"
    return Fit(
        context_length=context,
        own_context_length=model.own_context_length,
        needs=needs,
        pool_bytes=memory.pool_bytes(geometry),
        batch_bytes=memory.batch_bytes,
        agents=agents_that_fit(memory.space, geometry, tokens),
        tokens=tokens,
        agent_bytes=agent_bytes(geometry, context),
        refusal=refusal,
    )


def fitting_context(model: Sized, limits: MemoryLimits, given: KVLimits) -> int:
    """Return the longest context that fits without other processes, in whole blocks if below the model's own; 0 if
    none.
    """
    own = model.own_context_length
    whole = replace(limits, obtainable_bytes=None)
    if _holds(model, own, whole, given):
        return own
    fits, too_long = 0, -(-own // BLOCK_TOKENS)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if _holds(model, middle * BLOCK_TOKENS, whole, given):
            fits = middle
        else:
            too_long = middle
    return fits * BLOCK_TOKENS


def _holds(model: Sized, context: int, limits: MemoryLimits, given: KVLimits) -> bool:
    """Return whether an agent fits; set KV memory is taken as it is."""
    geometry = model.geometry
    needs, memory = _divided(model, context, limits, given)
    if needs.fixed_bytes + needs.least_kv_bytes > limits.usable_bytes:
        return False
    enough = memory.tokens >= context and memory.space.pieces >= geometry.checkpoint_pieces
    return enough or given.pool_bytes is not None


def _divided(model: Sized, context: int, limits: MemoryLimits, given: KVLimits) -> tuple[Needs, Sizes]:
    needs = needs_of(model, context, limits.usable_bytes, given.pool_bytes)
    return needs, given.sizes(kv_bytes(needs, (), limits), model.geometry, context)
