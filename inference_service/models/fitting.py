"""The fit of a model on this machine if it is loaded alone: its context, and the memory left for agents. Pure.

Before a download, for `doctor`, and at a load: one arithmetic.
"""

from dataclasses import dataclass

from agentmem.errors import FailedPrecondition
from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.device import has_own_memory
from inference_service.models.residency import (
    MemoryLimits,
    Needs,
    Sized,
    agent_bytes,
    check_sizes,
    kv_bytes,
    make_room,
    needs_of,
)
from inference_service.pool.memory import TYPICAL_TOKENS, Sizes, agents_that_fit, sizes

LEAST_CONTEXT = 1024
"""Tokens of a context that is worth a load, where the model's own is longer."""


@dataclass(frozen=True)
class KVLimits:
    """The worker's settings of these names."""

    pool_bytes: int | None = None
    batch_bytes: int | None = None
    typical_tokens: int = TYPICAL_TOKENS
    context_length: int | None = None


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
    """What `model` takes of `limits` with nothing else loaded."""
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
    """The longest context, at most the model's own, whose prompts this memory can compute and whose KV it can hold.

    It is the machine's, whatever other processes have at this moment; in whole blocks where it is not the model's own,
    and 0 where nothing fits.
    """
    own = model.own_context_length
    whole = MemoryLimits(limits.usable_bytes, limits.models)
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
    kv, arrays = (given.pool_bytes, given.batch_bytes), not has_own_memory()
    needs = needs_of(model, context, limits.usable_bytes, *kv, arrays=arrays)
    free = kv_bytes(needs, (), limits)
    return needs, sizes(free, model.geometry, context, *kv, given.typical_tokens, arrays=arrays)
