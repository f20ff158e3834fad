"""Which models may be in memory together: the arithmetic of the device's memory, and which go to make room. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentmem.errors import FailedPrecondition
from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.sizes import byte_size
from inference_service.engine.computing import Cost
from inference_service.engine.geometry import Geometry
from inference_service.pool.memory import TYPICAL_TOKENS, Sizes

_COMPUTING_SHARE = 4
"""Computing gets at most a fourth of what weights leave, unless the shortest chunks take more."""


class Sized(Protocol):
    """What the arithmetic takes of a model: `ModelInfo` and `ModelShape` have it, which say what each is."""

    @property
    def model_id(self) -> str: ...
    @property
    def geometry(self) -> Geometry: ...
    @property
    def own_context_length(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def cost(self) -> Cost: ...


@dataclass(frozen=True)
class Needs:
    """What a model takes, in bytes, besides the KV of agents: its weights, and what computing takes at its peak.

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


def needs_of(
    model: Sized,
    context_length: int,
    usable_bytes: int,
    pool_bytes: int | None = None,
    batch_bytes: int | None = None,
    *,
    arrays: bool = True,
) -> Needs:
    """Return the needs of a model with a context of that length. KV memory that is configured is needed; `batch_bytes`
    only where attention takes K and V as arrays.
    """
    geometry = model.geometry
    batch_bytes = batch_bytes if arrays else 0
    given = pool_bytes + batch_bytes if pool_bytes is not None and batch_bytes is not None else None
    return Needs(
        weight_bytes=model.weight_bytes,
        activation_bytes=_for_computing(model.cost, context_length, usable_bytes - model.weight_bytes),
        least_kv_bytes=_kv_bytes(geometry, BLOCK_TOKENS) if given is None else given,
        useful_kv_bytes=4 * agent_bytes(geometry, context_length) if given is None else given,
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
    """What all models may take of the device's memory, and how many of them may be loaded at once.

    `obtainable_bytes` is what they could have at this moment, without what other processes have; None: no less.
    """

    usable_bytes: int
    models: int = 1
    obtainable_bytes: int | None = None

    @property
    def bytes_now(self) -> int:
        """What all models may take at this moment."""
        return self.usable_bytes if self.obtainable_bytes is None else min(self.usable_bytes, self.obtainable_bytes)


def make_room(model_id: str, needs: Needs, residents: Sequence[Resident], limits: MemoryLimits) -> list[str]:
    """The models that must go before this one can be loaded: least recently used first, no pinned one, the fewest.

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
    """The model's share of memory for KV, beside those that are loaded; never negative.

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
        return (
            f"model {model_id!r} cannot be loaded: {limits.models} may be loaded at once, and {names} "
            f"{'is' if len(pinned) == 1 else 'are'} pinned; unpin one, or raise --loaded-models"
        )
    free = _free(pinned, limits)
    missing = needs.fixed_bytes + needs.least_kv_bytes - free
    held = f", of which pinned models ({names}) take {byte_size(limits.bytes_now - free)}" if pinned else ""
    now = max(0, limits.bytes_now)
    others = (
        f" as long as other processes have the rest of {byte_size(limits.usable_bytes)}"
        if now < limits.usable_bytes
        else ""
    )
    return (
        f"model {model_id!r} does not fit: its weights take {byte_size(needs.weight_bytes)}, computing "
        f"{byte_size(needs.activation_bytes)} and the least KV {byte_size(needs.least_kv_bytes)}; models may take "
        f"{byte_size(now)}{others}{held}; {byte_size(missing)} are missing. Take a smaller or quantized model, "
        "or make memory free"
    )
