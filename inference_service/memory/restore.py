"""Which KV to look for, and which of what was found to resume with: blocks, and for some models a checkpoint. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from agentmem.blockfile import BLOCK_TOKENS, NO_PARENT, BlockHeader, chain_hash
from agentmem.identity import TokenIds
from inference_service.memory.checkpoints import CheckpointCandidate, choose_checkpoint


class Candidate(NamedTuple):
    """A block that would serve: what its header must say, and how many of its tokens the sequence shares."""

    header: BlockHeader
    usable_tokens: int


@dataclass(frozen=True)
class Lookup:
    """The KV that would serve a sequence: candidates by block index, the best first, and `checkpoints`.

    `limit` is how many tokens can be reused at most, `keep_tokens` how many are the ledger's; `own` are the names of
    the sequence's own full blocks.
    """

    candidates: tuple[tuple[Candidate, ...], ...] = ()
    limit: int = 0
    own: tuple[bytes, ...] = ()
    keep_tokens: int = 0
    checkpoints: tuple[CheckpointCandidate, ...] = ()

    def hashes(self) -> list[bytes]:
        """Return the names of blocks to look for."""
        return list({c.header.chain_hash for row in self.candidates for c in row})

    def choose(self, found: Collection[bytes]) -> list[Candidate]:
        """Return the longest gapless run of blocks from the start, of those that exist."""
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
        """Return names of blocks that were not found, any one of which would let `choose` take more.

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


NO_LOOKUP = Lookup()


@dataclass(frozen=True)
class Choice:
    """What to resume with: blocks in order, those in the pool first, and a checkpoint, `surplus` tokens of its window
    cut off.

    Each block's `usable_tokens` are those that are taken.
    """

    hot: Sequence[Candidate] = ()
    warm: Sequence[Candidate] = ()
    checkpoint: CheckpointCandidate | None = None
    surplus: int = 0

    @property
    def hot_tokens(self) -> int:
        """Tokens of blocks in the pool."""
        return sum(candidate.usable_tokens for candidate in self.hot)

    @property
    def warm_tokens(self) -> int:
        """Tokens of blocks in files."""
        return sum(candidate.usable_tokens for candidate in self.warm)

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.hot_tokens + self.warm_tokens


NOTHING_CHOSEN = Choice()


def choose(
    lookup: Lookup,
    pool: Collection[bytes],
    files: Collection[bytes],
    stored: Mapping[bytes, int] | None = None,
    window: int = 0,
    *,
    exact: bool = False,
) -> Choice:
    """Return the longest gapless run of blocks in the pool, and then of files.

    A hybrid model, whose sliding layers see `window` tokens, resumes only with one of the lookup's checkpoints:
    `stored` says how many tokens those that were found hold. None asks for the blocks alone. `exact`: it has recurrent
    layers, and resumes only at the very position of one.
    """
    chosen = lookup.choose({*pool, *files})
    hot = list(takewhile(lambda candidate: candidate.header.chain_hash in pool, chosen))
    warm = list(takewhile(lambda candidate: candidate.header.chain_hash in files, chosen[len(hot) :]))
    if stored is None:
        return Choice(hot, warm)
    best = choose_checkpoint(lookup.checkpoints, stored, window, Choice(hot, warm).tokens, exact=exact)
    if best is None:
        return NOTHING_CHOSEN
    found, tokens = best
    hot = _cut(hot, tokens)
    warm = _cut(warm, tokens - sum(candidate.usable_tokens for candidate in hot))
    return Choice(hot, warm, found, found.position - tokens)


def look_up(
    fingerprint: str,
    namespace: str,
    ledger_ids: TokenIds,
    keep_tokens: int,
    sequence: TokenIds,
    checkpoints: tuple[CheckpointCandidate, ...] = (),
) -> Lookup:
    """Return what holds beginnings of `sequence`, whose first `keep_tokens` tokens are those of the ledger.

    Index ranges, for block i of tokens [256 i, 256 (i + 1)):
      the sequence's own block   if it is full: found wherever any agent of the namespace computed the same beginning
      the ledger's block, cut    if it begins below keep_tokens: usable up to there, full block or tail
      blocks up to checkpoints   that lie in what is kept: an import has KV up to one, maybe in the middle of a block
    The last token of the sequence is never reused, because it has to be run for its logits.
    """
    limit, ids = len(sequence) - 1, (fingerprint, namespace)
    own = list(headers(*ids, sequence))
    common = keep_tokens // BLOCK_TOKENS  # Blocks that both have, with one name.
    ledgers = headers(*ids, ledger_ids, own[:common])
    kept = sorted(each for each in checkpoints if each.usable_tokens == each.position <= keep_tokens)
    up_to_checkpoints = [each.block(*ids) for each in reversed(kept)]
    rows = []
    for first in range(0, limit, BLOCK_TOKENS):
        row = []
        mine = own[first // BLOCK_TOKENS]
        if mine.token_count == BLOCK_TOKENS:
            row.append(Candidate(mine, min(BLOCK_TOKENS, limit - first)))
        if common * BLOCK_TOKENS <= first < keep_tokens and (theirs := next(ledgers)) not in (c.header for c in row):
            row.append(Candidate(theirs, min(theirs.token_count, keep_tokens - first, limit - first)))
        there = {candidate.header for candidate in row}
        short = (block for block in up_to_checkpoints if block.first_token == first and block not in there)
        row += [Candidate(block, min(block.token_count, limit - first)) for block in short]
        if not row:
            break
        rows.append(tuple(row))
    names = tuple(header.chain_hash for header in own if header.token_count == BLOCK_TOKENS)
    return Lookup(tuple(rows), limit, names, keep_tokens, checkpoints)


def headers(
    fingerprint: str, namespace: str, token_ids: TokenIds, known: Sequence[BlockHeader] = ()
) -> Iterator[BlockHeader]:
    """Yield the headers of a sequence's blocks behind its `known` full ones, the last a tail if it is not full."""
    token_ids = np.asarray(token_ids, dtype=np.uint32)
    parent = known[-1].chain_hash if known else NO_PARENT
    for first in range(len(known) * BLOCK_TOKENS, len(token_ids), BLOCK_TOKENS):
        ids = token_ids[first : first + BLOCK_TOKENS]
        name = chain_hash(fingerprint, namespace, parent, ids)
        yield BlockHeader(fingerprint, namespace, name, parent, first, len(ids))
        parent = name


def _cut(candidates: Sequence[Candidate], tokens: int) -> list[Candidate]:
    kept = []
    for candidate in candidates:
        if tokens <= 0:
            break
        kept.append(candidate._replace(usable_tokens=min(tokens, candidate.usable_tokens)))
        tokens -= candidate.usable_tokens
    return kept
