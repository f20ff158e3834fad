"""Where a ledger's KV is, block by block: what the store and the worker tell of it together. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.v1 import agent_pb2, types_pb2

Tier: TypeAlias = types_pb2.Tier.ValueType


class Part(NamedTuple):
    """Tokens of one block, from `start` up to `end` in the ledger, and the hottest tier with their KV."""

    start: int
    end: int
    tier: Tier


def parts(tokens: int, stored: Iterable[tuple[Tier, Mapping[int, int]]]) -> Iterator[Part]:
    """Yield all tokens of a ledger, in order; a block is several parts where not all of it is in one tier.

    `stored` says of each tier, the hottest first, up to where its blocks go, by their first tokens.
    """
    tiers = list(stored)
    for start in range(0, tokens, BLOCK_TOKENS):
        last, at = min(start + BLOCK_TOKENS, tokens), start
        for tier, ends in tiers:
            end = min(ends.get(start, start), last)
            if end > at:
                yield Part(at, end, tier)
                at = end
        if at < last:
            yield Part(at, last, types_pb2.TIER_NONE)


def messages(found: Iterable[Part], ends: Sequence[int]) -> list[agent_pb2.KVBlock]:
    """Return parts as messages; `ends` are where the text of each token ends, in bytes."""
    offsets = [0, *ends]
    return [
        agent_pb2.KVBlock(
            first_token=start,
            tokens=end - start,
            tier=tier,
            first_byte=offsets[start],
            bytes=offsets[end] - offsets[start],
        )
        for start, end, tier in found
    ]


def with_hot(listed: agent_pb2.ListBlocksResponse, tokens: int, ends: Sequence[int]) -> None:
    """Say that the first `tokens` tokens are in the pool, in place; `ends` are as for `messages`."""
    if not tokens:
        return
    found = []
    for block in listed.blocks:
        start, end = block.first_token, block.first_token + block.tokens
        cuts = sorted({start, end, min(max(tokens, start), end)})
        found += [Part(*cut, types_pb2.TIER_HOT if cut[1] <= tokens else block.tier) for cut in pairwise(cuts)]
    del listed.blocks[:]
    listed.blocks.extend(messages(_joined(found), ends))


def _joined(found: Iterable[Part]) -> Iterator[Part]:
    """Yield parts, those of one block and tier in one."""
    held: Part | None = None
    for part in found:
        if held is not None and held.tier == part.tier and held.start // BLOCK_TOKENS == part.start // BLOCK_TOKENS:
            held = held._replace(end=part.end)
            continue
        if held is not None:
            yield held
        held = part
    if held is not None:
        yield held
