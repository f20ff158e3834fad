"""Whether a model fits this machine if it is loaded alone, and what it leaves for agents. Pure."""

from dataclasses import dataclass

from agentmem.errors import FailedPrecondition
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
from inference_service.pool.memory import TYPICAL_TOKENS, agents_that_fit, sizes


@dataclass(frozen=True)
class KVLimits:
    """The worker's settings of these names."""

    pool_bytes: int | None = None
    batch_bytes: int | None = None
    typical_tokens: int = TYPICAL_TOKENS


@dataclass(frozen=True)
class Fit:
    """What a model takes and leaves, in bytes. Computing is estimated.

    `agents` of `tokens` tokens and `agent_bytes` each are hot at once. `refusal` says why the model cannot be loaded;
    "" where it can.
    """

    needs: Needs
    pool_bytes: int
    batch_bytes: int
    agents: int
    tokens: int
    agent_bytes: int
    refusal: str = ""


def fit(model: Sized, limits: MemoryLimits, given: KVLimits) -> Fit:
    """What `model` takes of `limits` with nothing else loaded."""
    needs = needs_of(model, None, given.pool_bytes, given.batch_bytes)
    geometry, context = model.geometry, model.context_length
    free = kv_bytes(needs, (), limits)
    memory = sizes(free, geometry, context, given.pool_bytes, given.batch_bytes, given.typical_tokens)
    tokens = min(TYPICAL_TOKENS, context)
    refusal = ""
    try:
        make_room(model.model_id, needs, (), limits)
        check_sizes(model, memory)
    except FailedPrecondition as error:
        refusal = error.message
    return Fit(
        needs=needs,
        pool_bytes=memory.pool_bytes(geometry),
        batch_bytes=memory.batch_bytes,
        agents=agents_that_fit(memory.space, geometry, tokens),
        tokens=tokens,
        agent_bytes=agent_bytes(geometry, context),
        refusal=refusal,
    )
