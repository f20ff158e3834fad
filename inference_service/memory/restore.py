"""KV to look for, and which of the found to resume with. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from agentmem.kv.blockfile import BLOCK_TOKENS, NO_PARENT, BlockHeader, chain_hash
from agentmem.kv.ledger import TokenIds, ordered, shared_tokens, unordered
from inference_service.memory.checkpoints import CheckpointCandidate, choose_checkpoint

LEAST_SHARED = 64
"""Fewer tokens are computed about as fast."""


class Candidate(NamedTuple):
    header: BlockHeader
    usable_tokens: int


class Place(NamedTuple):
    """Where a run of blocks ends; another's block may go on as the sequence does. `taken` of its `ordered` tokens are
    found.
    """

    block: int
    parent: bytes
    token_ids: bytes
    taken: int


@dataclass(frozen=True)
class Lookup:
    """KV that would serve a sequence: candidates by block, the best first.

    `limit` tokens can be reused, `keep_tokens` are the ledger's; `own` names the sequence's full blocks.
    `incompatible`: the agent's KV is another model's.
    """

    candidates: tuple[tuple[Candidate, ...], ...] = ()
    limit: int = 0
    own: tuple[bytes, ...] = ()
    keep_tokens: int = 0
    checkpoints: tuple[CheckpointCandidate, ...] = ()
    sequence: TokenIds = field(default=(), compare=False)
    incompatible: bool = False

    def hashes(self) -> list[bytes]:
        return list({c.header.chain_hash for row in self.candidates for c in row})

    def choose(self, found: Collection[bytes]) -> list[Candidate]:
        chosen = []
        for row in self.candidates:
            best = next((c for c in row if c.header.chain_hash in found), None)
            if best is None:
                break
            chosen.append(best)
            if best.usable_tokens < BLOCK_TOKENS:
                break
        return chosen

    def end(self, found: Collection[bytes]) -> Place | None:
        """None if a block could add next to nothing."""
        chosen = self.choose(found)
        taken = chosen[-1].usable_tokens % BLOCK_TOKENS if chosen else 0
        index = len(chosen) - (taken > 0)
        first = index * BLOCK_TOKENS
        if min(BLOCK_TOKENS, self.limit - first) - taken < LEAST_SHARED:
            return None
        parent = self.own[index - 1] if index else NO_PARENT
        return Place(index, parent, ordered(self.sequence[first : first + BLOCK_TOKENS]), taken)

    def with_block(
        self, fingerprint: str, namespace: str, place: Place, name: bytes, token_ids: bytes
    ) -> "Lookup | None":
        """Add a block that diverges; None if its `ordered` tokens do not give its name, or add next to nothing."""
        tokens = unordered(token_ids)
        if not 0 < len(tokens) <= BLOCK_TOKENS or chain_hash(fingerprint, namespace, place.parent, tokens) != name:
            return None
        first = place.block * BLOCK_TOKENS
        usable = min(shared_tokens(token_ids, place.token_ids), self.limit - first)
        if usable - place.taken < LEAST_SHARED:
            return None
        header = BlockHeader(fingerprint, namespace, name, place.parent, first, len(tokens))
        row = self.candidates[place.block] if place.block < len(self.candidates) else ()
        row = tuple(sorted((*row, Candidate(header, usable)), key=lambda each: -each.usable_tokens))
        return replace(self, candidates=(*self.candidates[: place.block], row, *self.candidates[place.block + 1 :]))

    def with_checkpoints(self, names: Iterable[bytes]) -> "Lookup":
        wanted = set(names).difference(each.name for each in self.checkpoints)
        parents = (NO_PARENT, *self.own)
        ends = range(BLOCK_TOKENS, self.limit + 1, BLOCK_TOKENS)
        each = zip(ends, self.own, parents, ends, strict=False)
        new = [CheckpointCandidate(*values) for values in each if values[1] in wanted]
        return replace(self, checkpoints=(*self.checkpoints, *new)) if new else self

    def missing(self, found: Collection[bytes]) -> list[bytes]:
        """Return blocks any one of which would let `choose` take more."""
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
    """Blocks in the pool, then files, and a checkpoint, `surplus` tokens of its window cut off."""

    hot: Sequence[Candidate] = ()
    warm: Sequence[Candidate] = ()
    checkpoint: CheckpointCandidate | None = None
    surplus: int = 0

    @property
    def hot_tokens(self) -> int:
        return sum(candidate.usable_tokens for candidate in self.hot)

    @property
    def warm_tokens(self) -> int:
        return sum(candidate.usable_tokens for candidate in self.warm)

    @property
    def tokens(self) -> int:
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
    """Return the longest run of blocks in the pool, then of files.

    A hybrid model resumes only with a checkpoint of `stored` tokens (None: blocks alone).
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
    """Return what holds beginnings of `sequence`, whose first `keep_tokens` tokens are the ledger's.

    Block i, of tokens [256 i, 256 (i + 1)):
      the sequence's own         if it is full: found whoever of the namespace computed it
      the ledger's, cut          if it begins below keep_tokens
      blocks up to checkpoints   in what is kept: an import has KV up to one
    The last token is never reused: it is run for its logits.
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
    return Lookup(tuple(rows), limit, names, keep_tokens, checkpoints, sequence)


def headers(
    fingerprint: str, namespace: str, token_ids: TokenIds, known: Sequence[BlockHeader] = ()
) -> Iterator[BlockHeader]:
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
