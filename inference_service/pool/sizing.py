"""How much memory goes where: from what the device has to blocks, pieces of windows, and a budget for batches. Pure."""

from dataclasses import dataclass

from agentmem.blockfile import BLOCK_TOKENS
from inference_service.engine.geometry import Geometry
from inference_service.pool.kv import Space

TYPICAL_TOKENS = 4_096
"""Tokens of the agent for which a hybrid model's pool is split by default, and for which it is told how many fit."""

MOST_CONTEXTS = 32
"""A pool that nobody sized is no larger than so many agents at the end of their context."""


@dataclass(frozen=True)
class Sizes:
    """What the pool holds, and how many bytes decoding may take besides."""

    space: Space
    batch_bytes: int

    @property
    def tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.space.blocks * BLOCK_TOKENS

    def pool_bytes(self, geometry: Geometry) -> int:
        """What the pool takes."""
        return self.tokens * geometry.bytes_per_token + self.space.pieces * geometry.piece_bytes


def sizes(
    free_bytes: int,
    geometry: Geometry,
    context_length: int,
    pool_bytes: int | None = None,
    batch_bytes: int | None = None,
    typical_tokens: int = TYPICAL_TOKENS,
) -> Sizes:
    """Split the memory that weights leave. By default half of it is the pool's, and the rest is the batches'.

    A hybrid model's pool gets a window to each `typical_tokens` tokens of full attention: as many windows as such
    agents. Longer ones leave windows unused, shorter ones blocks. Nothing is left where `free_bytes` is negative.
    """
    free_bytes = max(0, free_bytes)
    agent_bytes = context_length * geometry.bytes_per_token + geometry.window_bytes
    pool = min(free_bytes // 2, MOST_CONTEXTS * agent_bytes) if pool_bytes is None else pool_bytes
    batch = max(0, free_bytes - pool) if batch_bytes is None else batch_bytes
    pieces, piece_bytes = geometry.window_pieces, geometry.piece_bytes
    agents = pool / (typical_tokens * geometry.bytes_per_token + pieces * piece_bytes)
    blocks = int(agents * typical_tokens / BLOCK_TOKENS)
    return Sizes(Space(blocks, int(agents * pieces)), batch)


def agents_that_fit(space: Space, geometry: Geometry, tokens: int) -> int:
    """How many agents of so many tokens a pool holds, if they share nothing."""
    by_blocks = space.blocks // -(-tokens // BLOCK_TOKENS)
    return min(by_blocks, space.pieces // geometry.window_pieces) if geometry.window_pieces else by_blocks
