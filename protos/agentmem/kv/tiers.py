"""The tiers of a ledger's KV, block by block. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple, TypeAlias

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.v1 import agent_pb2, types_pb2

Tier: TypeAlias = types_pb2.Tier.ValueType


class Part(NamedTuple):
    start: int
    end: int
    tier: Tier


def parts(tokens: int, stored: Iterable[tuple[Tier, Mapping[int, int]]]) -> Iterator[Part]:
    """Yield all tokens in order, with several parts for a block in several tiers.

    `stored` has for each tier, the hottest first, the ends of its blocks by their first tokens.
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
    """`ends` are in bytes of the text."""
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
    """Mark the first `tokens` tokens as hot, in place."""
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
    for _, alike in groupby(found, lambda part: (part.tier, part.start // BLOCK_TOKENS)):
        joined = list(alike)
        yield joined[0]._replace(end=joined[-1].end)
