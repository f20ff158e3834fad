"""Where KV is, block by block: all tokens once, each in the hottest tier that has it."""

from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.kv.tiers import messages, parts, with_hot
from agentmem.v1 import agent_pb2
from agentmem.v1.types_pb2 import TIER_HOT, TIER_NONE, TIER_REMOTE, TIER_WARM

_ENDS = st.dictionaries(st.integers(0, 4).map(lambda block: block * BLOCK_TOKENS), st.integers(0, 5 * BLOCK_TOKENS))


@given(st.integers(0, 5 * BLOCK_TOKENS), _ENDS, _ENDS, st.integers(0, 5 * BLOCK_TOKENS))
def test_all_tokens_once_in_the_hottest_tier(
    tokens: int, warm: dict[int, int], remote: dict[int, int], hot: int
) -> None:
    ends = list(range(2, 2 * tokens + 2, 2))
    listed = agent_pb2.ListBlocksResponse(
        blocks=messages(parts(tokens, [(TIER_WARM, warm), (TIER_REMOTE, remote)]), ends)
    )
    with_hot(listed, min(hot, tokens), ends)
    told = [block.tier for block in listed.blocks for _ in range(block.tokens)]

    def tier(token: int) -> int:
        first = token // BLOCK_TOKENS * BLOCK_TOKENS
        if token < hot:
            return TIER_HOT
        return TIER_WARM if token < warm.get(first, 0) else TIER_REMOTE if token < remote.get(first, 0) else TIER_NONE

    assert told == [tier(token) for token in range(tokens)]
    at = 0
    for block in listed.blocks:
        assert (block.first_token, block.first_byte, block.bytes) == (at, 2 * at, 2 * block.tokens)
        assert block.first_token // BLOCK_TOKENS == (block.first_token + block.tokens - 1) // BLOCK_TOKENS
        at += block.tokens
    neighbours = zip(listed.blocks, listed.blocks[1:], strict=False)
    assert not any(a.tier == b.tier and b.first_token % BLOCK_TOKENS for a, b in neighbours), "no needless cuts"
