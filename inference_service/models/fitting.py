"""The arithmetic of the device's memory: the context and the agents that a model has room for, which models may be
loaded together, and which go to make room. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from agentmem.errors import FailedPrecondition
from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.sizes import byte_size
from inference_service.engine.computing import Cost
from inference_service.engine.device import has_own_memory
from inference_service.engine.geometry import Geometry
from inference_service.models.opening import ModelInfo, ModelShape
from inference_service.pool.memory import TYPICAL_TOKENS, Sizes, agents_that_fit, sizes
from inference_service.settings import WorkerSettings

LEAST_CONTEXT = 1024
"""Tokens of a context that is worth a load, where the model's own is longer."""
_COMPUTING_SHARE = 4
"""Computing gets at most a fourth of what weights leave, unless the shortest chunks take more."""

Sized = ModelInfo | ModelShape


@dataclass(frozen=True)
class KVLimits:
    """The worker's settings of these names."""

    pool_bytes: int | None = None
    typical_tokens: int = TYPICAL_TOKENS
    context_length: int | None = None

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """Return those of a worker."""
        return cls(settings.pool_bytes, settings.typical_tokens, settings.context_length)

    def sizes(self, free_bytes: int, geometry: Geometry, context_length: int) -> Sizes:
        """Return how so much memory for KV is divided."""
        given = self.pool_bytes, self.typical_tokens
        return sizes(free_bytes, geometry, context_length, *given, arrays=not has_own_memory())


@dataclass(frozen=True)
class Needs:
    """A model's bytes besides the KV of agents: its weights, and what computing takes at its peak.

    `least_kv_bytes` is the KV memory without which it cannot run, `useful_kv_bytes` that of four agents of 4096 tokens.
    """

    weight_bytes: int
    activation_bytes: int
    least_kv_bytes: int
    useful_kv_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """Weights and activations."""
        return self.weight_bytes + self.activation_bytes


def needs_of(model: Sized, context_length: int, usable_bytes: int, pool_bytes: int | None = None) -> Needs:
    """Return the needs of a model with a context of that length. A pool that is configured is needed."""
    geometry = model.geometry
    return Needs(
        weight_bytes=model.weight_bytes,
        activation_bytes=_for_computing(model.cost, context_length, usable_bytes - model.weight_bytes),
        least_kv_bytes=_kv_bytes(geometry, BLOCK_TOKENS) if pool_bytes is None else pool_bytes,
        useful_kv_bytes=4 * agent_bytes(geometry, context_length) if pool_bytes is None else pool_bytes,
    )


def _for_computing(cost: Cost, context_length: int, left: int) -> int:
    """Return the share of computing in the bytes that weights leave: enough for the largest chunks, unless that is too
    much; then chunks are shorter.
    """
    return min(cost.most(context_length), max(cost.least(context_length), left // _COMPUTING_SHARE))


def agent_bytes(geometry: Geometry, context_length: int) -> int:
    """Return what one agent of 4096 tokens, or of as many as the context holds, takes of the pool."""
    return _kv_bytes(geometry, min(TYPICAL_TOKENS, context_length))


def _kv_bytes(geometry: Geometry, tokens: int) -> int:
    """Return what an agent of so many tokens takes of the pool: they, and a checkpoint in whole pieces."""
    return geometry.checkpoint_pieces * geometry.piece_bytes + tokens * geometry.bytes_per_token


def check_sizes(info: Sized, memory: Sizes) -> None:
    """Raise FailedPrecondition for memory in which no request could run."""
    if not memory.space.blocks or memory.space.pieces < info.geometry.checkpoint_pieces:
        raise FailedPrecondition(
            f"model {info.model_id!r} has {memory.space.blocks} blocks of memory for agents' KV, too little for one "
            "request; take a smaller model, or set --pool-bytes"
        )


@dataclass(frozen=True)
class Resident:
    """A loaded model: all bytes that it takes, and when a request last used it, on the monotonic clock."""

    model_id: str
    taken_bytes: int
    last_used: float
    pinned: bool = False


@dataclass(frozen=True)
class MemoryLimits:
    """Limits on what all models take of the device's memory, and on how many may be loaded at once.

    `obtainable_bytes` is what they could have at this moment, without what other processes have; None: no less.
    """

    usable_bytes: int
    models: int = 1
    obtainable_bytes: int | None = None

    @property
    def bytes_now(self) -> int:
        """Return the bytes that all models may take at this moment."""
        return self.usable_bytes if self.obtainable_bytes is None else min(self.usable_bytes, self.obtainable_bytes)


def make_room(model_id: str, needs: Needs, residents: Sequence[Resident], limits: MemoryLimits) -> list[str]:
    """Return the fewest models that must go before this one can be loaded: least recently used first, no pinned one.

    Others rather go than that the new one gets memory for fewer than four agents of 4096 tokens. Raises
    FailedPrecondition, saying what is missing, where all that may go are not enough.
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
    """Return the model's share of memory for KV, beside those that are loaded; never negative.

    What is free is shared evenly among this model and those that may still come. It counts on what models may take in
    time, and not on what is free at this moment, because other processes may end.
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
    """Bytes that a model takes and leaves with a context of `context_length` tokens. Computing is estimated.

    `agents` of `tokens` tokens and `agent_bytes` each are hot at once. `refusal` says why the model cannot be loaded;
    "" where it can.
    """

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
        """The context in words, and the model's own where that is longer."""
        own = f" of {self.own_context_length:,}" if self.context_length < self.own_context_length else ""
        return f"context {self.context_length:,}{own} tokens"


def fit(model: Sized, limits: MemoryLimits, given: KVLimits) -> Fit:
    """Return what `model` takes of `limits` with nothing else loaded."""
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
    """Return the longest context, at most the model's own, that this memory can compute and hold.

    It is the machine's, whatever other processes have at this moment; in whole blocks where it is not the model's own,
    and 0 where nothing fits.
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
    """Return whether one agent can come to the end of such a context. KV memory that is set is taken as it is."""
    geometry = model.geometry
    needs, memory = _divided(model, context, limits, given)
    if needs.fixed_bytes + needs.least_kv_bytes > limits.usable_bytes:
        return False
    enough = memory.tokens >= context and memory.space.pieces >= geometry.checkpoint_pieces
    return enough or given.pool_bytes is not None


def _divided(model: Sized, context: int, limits: MemoryLimits, given: KVLimits) -> tuple[Needs, Sizes]:
    """Return the needs of the model, and how the memory for KV is divided."""
    needs = needs_of(model, context, limits.usable_bytes, given.pool_bytes)
    return needs, given.sizes(kv_bytes(needs, (), limits), model.geometry, context)
