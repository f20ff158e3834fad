"""Which blocks of KV to look for, and which of those found to load. Pure."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentmem.blockfile import BLOCK_TOKENS, NO_PARENT, BlockHeader, chain_hash


class Candidate(NamedTuple):
    """A block that would serve: what its header must say, and how many of its tokens the sequence shares."""

    header: BlockHeader
    usable_tokens: int


@dataclass(frozen=True)
class Lookup:
    """Candidates by block index, the best first. `limit` is how many tokens can be reused at most.

    `own` are the names of the sequence's own full blocks.
    """

    candidates: tuple[tuple[Candidate, ...], ...]
    limit: int
    own: tuple[bytes, ...] = ()

    def hashes(self) -> list[bytes]:
        """Names to ask the store for."""
        return list({c.header.chain_hash for row in self.candidates for c in row})

    def choose(self, found: Collection[bytes]) -> list[Candidate]:
        """The longest gapless run of blocks from the start, of those that exist."""
        chosen = []
        for row in self.candidates:
            best = next((c for c in row if c.header.chain_hash in found), None)
            if best is None:
                break
            chosen.append(best)
            if best.usable_tokens < BLOCK_TOKENS:
                break
        return chosen

    def missing(self, found: Collection[bytes]) -> list[bytes]:
        """Names of blocks that were not found, any one of which would let `choose` take more; none if all is taken.

        Where the run ends in a cut block, these are the full blocks of that place: what another branch has computed.
        """
        chosen = self.choose(found)
        if chosen and chosen[-1].usable_tokens < BLOCK_TOKENS:
            row, taken = self.candidates[len(chosen) - 1], chosen[-1].usable_tokens
        elif len(chosen) < len(self.candidates):
            row, taken = self.candidates[len(chosen)], 0
        else:
            return []
        return [candidate.header.chain_hash for candidate in row if candidate.usable_tokens > taken]


def look_up(
    fingerprint: str, namespace: str, ledger_ids: Sequence[int], keep_tokens: int, sequence: Sequence[int]
) -> Lookup:
    """Blocks that hold beginnings of `sequence`, whose first `keep_tokens` are those of the ledger.

    Index ranges, for block i of tokens [256 i, 256 (i + 1)):
      the sequence's own block   if it is full: found wherever any agent of the namespace computed the same beginning
      the ledger's block, cut    if it begins below keep_tokens: usable up to there, full block or tail
    The last token of the sequence is never reused, because it has to be run for its logits.
    """
    limit = len(sequence) - 1
    own = list(headers(fingerprint, namespace, sequence))
    common = keep_tokens // BLOCK_TOKENS  # Blocks that both have, with one name.
    ledgers = headers(fingerprint, namespace, ledger_ids, own[:common])
    rows = []
    for first in range(0, limit, BLOCK_TOKENS):
        row = []
        mine = own[first // BLOCK_TOKENS]
        if mine.token_count == BLOCK_TOKENS:
            row.append(Candidate(mine, min(BLOCK_TOKENS, limit - first)))
        if common * BLOCK_TOKENS <= first < keep_tokens and (theirs := next(ledgers)) not in (c.header for c in row):
            row.append(Candidate(theirs, min(theirs.token_count, keep_tokens - first, limit - first)))
        if not row:
            break
        rows.append(tuple(row))
    names = tuple(header.chain_hash for header in own if header.token_count == BLOCK_TOKENS)
    return Lookup(tuple(rows), limit, names)


def headers(
    fingerprint: str, namespace: str, token_ids: Sequence[int], known: Sequence[BlockHeader] = ()
) -> Iterator[BlockHeader]:
    """The headers of the blocks of a sequence behind its `known` full ones, the last a tail if it is not full."""
    parent = known[-1].chain_hash if known else NO_PARENT
    for first in range(len(known) * BLOCK_TOKENS, len(token_ids), BLOCK_TOKENS):
        ids = token_ids[first : first + BLOCK_TOKENS]
        name = chain_hash(fingerprint, namespace, parent, ids)
        yield BlockHeader(fingerprint, namespace, name, parent, first, len(ids))
        parent = name
