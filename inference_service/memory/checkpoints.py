"""Checkpoints that a prompt may resume with. Pure.

Recurrent states stand for exactly the tokens before them. A window has the last W tokens and up to 256 more, so that it
can be trimmed (r: where to resume):

    0 … start … r - W … r … position        good if start <= max(0, r - W)

Names depend on the tokens before alone: a wrong guess costs a look-up.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from agentmem.kv.blockfile import BLOCK_TOKENS, NO_PARENT, BlockHeader, chain_hash, chain_hashes
from agentmem.kv.ledger import Ledger, TokenIds
from agentmem.v1 import cache_store_pb2 as pb
from inference_service.memory.spacing import STEP, firsts_of_stretches, periodic_positions

_NEAREST = 8
"""Tried on each side of where the sequence leaves the ledger."""
_NEAREST_TURNS = 64
_LONGEST_PROMPT = 64
_PROMPT_BEGINNING = 2
"""History may differ after these tokens of a generation prompt."""


class CheckpointCandidate(NamedTuple):
    """With `usable_tokens` below `position` its window has to be trimmed."""

    position: int
    name: bytes
    parent: bytes
    usable_tokens: int

    def header(self, fingerprint: str, namespace: str, tokens: int) -> BlockHeader:
        first = self.position - tokens
        return BlockHeader(fingerprint, namespace, self.name, self.parent, first, tokens, window=True)

    def block(self, fingerprint: str, namespace: str) -> BlockHeader:
        first = (self.position - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        return BlockHeader(fingerprint, namespace, self.name, self.parent, first, self.position - first)


def checkpoint_candidates(
    fingerprint: str,
    namespace: str,
    ledger: Ledger,
    keep_tokens: int,
    sequence: TokenIds,
    checkpoints: Sequence[int],
    *,
    exact: bool = False,
) -> tuple[CheckpointCandidate, ...]:
    """Return checkpoints for `sequence`, whose first `keep_tokens` are the ledger's: at the plan's `checkpoints`,
    multiples of STEP, ends of turns, before the last tokens of prompts, and where generation prompts begin. Those after
    `keep_tokens` serve only trimmed, so not with `exact`.
    """
    limit = min(keep_tokens, len(sequence) - 1)
    generation_prompt = sequence[checkpoints[-1] :] if checkpoints else ()
    beginning = generation_prompt[:_PROMPT_BEGINNING] if len(generation_prompt) <= _LONGEST_PROMPT else ()
    prompts = _occurrences(sequence, beginning)
    ends = [turn.end_token for turn in ledger.turns]
    before = sorted({max(0, turn.end_token - turn.generated_tokens - 1) for turn in ledger.turns})
    own = {*checkpoints, *range(STEP, len(sequence), STEP), *_up_to(limit, prompts), *_up_to(len(sequence), prompts)}
    own |= {*_up_to(limit, ends), *_up_to(limit, before)}
    ids = fingerprint, namespace
    candidates = list(candidates_at(*ids, sequence, {at for at in own if 0 < at < len(sequence)}))
    if limit and not exact:
        blocks = [(limit // BLOCK_TOKENS + 1) * BLOCK_TOKENS, ledger.tokens_within(ledger.opening_bytes)]
        beyond = {at for at in blocks if limit < at <= len(ledger)}
        for places in (ends, before, _occurrences(ledger.token_ids, beginning)):
            beyond.update(_beyond(limit, places))
        candidates += [each._replace(usable_tokens=limit) for each in candidates_at(*ids, ledger.token_ids, beyond)]
    return tuple(candidates)


def candidates_at(
    fingerprint: str, namespace: str, token_ids: TokenIds, positions: Iterable[int]
) -> tuple[CheckpointCandidate, ...]:
    token_ids, wanted, found = np.asarray(token_ids, np.uint32), sorted(positions), []
    parents = [NO_PARENT, *chain_hashes(fingerprint, namespace, token_ids[: wanted[-1] - 1 if wanted else 0])]
    for position in wanted:
        block = (position - 1) // BLOCK_TOKENS
        name = chain_hash(fingerprint, namespace, parents[block], token_ids[block * BLOCK_TOKENS : position])
        found.append(CheckpointCandidate(position, name, parents[block], position))
    return tuple(found)


def likely_positions(ledger: Ledger) -> set[int]:
    """Without a prompt."""
    ends = [turn.end_token for turn in ledger.turns]
    answers = [turn.end_token - turn.generated_tokens for turn in ledger.turns[:1] + ledger.turns[-_NEAREST:]]
    prompts = {at for answer in answers for at in range(answer - _LONGEST_PROMPT, answer + 1)}
    opening = ledger.tokens_within(ledger.opening_bytes)
    found = {len(ledger), opening, *ends[-_NEAREST_TURNS:], *prompts, *range(0, len(ledger), BLOCK_TOKENS)}
    return {position for position in found if 0 < position <= len(ledger)}


def capture_positions(checkpoints: Sequence[int], tokens: int) -> tuple[int, ...]:
    """Return a prompt's checkpoints, or before its last token, and the end of a block before: others can go on only
    from there.
    """
    exact = tuple(checkpoints) or (tokens - 1,)
    shared = exact[0] // BLOCK_TOKENS * BLOCK_TOKENS
    return tuple(sorted({shared, *exact} - {0}))


def captures_by_worth(checkpoints: Sequence[int], tokens: int, distance: int) -> tuple[int, ...]:
    """Return where prefill keeps checkpoints, the least needed last."""
    if not distance:
        return ()
    own = capture_positions(checkpoints, tokens)[::-1]
    periodic = sorted(periodic_positions(distance, tokens), key=lambda at: at & -at, reverse=True)
    return tuple(dict.fromkeys((*own, *periodic)))


def checkpoint_headers(
    fingerprint: str, namespace: str, token_ids: TokenIds, stored: Mapping[int, int]
) -> list[BlockHeader]:
    candidates = candidates_at(fingerprint, namespace, token_ids, stored)
    return [each.header(fingerprint, namespace, stored[each.position]) for each in candidates]


def stored_tokens(candidates: Iterable[CheckpointCandidate], files: Mapping[bytes, pb.StoredFile]) -> dict[bytes, int]:
    """Rows of other positions are left out."""
    found = {}
    for candidate in candidates:
        file = files.get(candidate.name)
        if file is not None and file.first_token + file.token_count == candidate.position:
            found[candidate.name] = file.token_count
    return found


def resume_position(position: int, stored_tokens: int, window: int, limit: int, *, exact: bool = False) -> int:
    """Resume as `Sequence.trim` allows; 0 is nowhere."""
    if exact and position > limit:
        return 0
    resume, start = min(position, limit), position - stored_tokens
    good = stored_tokens > 0 and 0 <= start <= max(0, resume - window)
    return resume if good and resume > 0 else 0


def choose_checkpoint(
    candidates: Iterable[CheckpointCandidate],
    stored: Mapping[bytes, int],
    window: int,
    block_tokens: int,
    *,
    exact: bool = False,
) -> tuple[CheckpointCandidate, int] | None:
    """Return the candidate that resumes furthest, and where. Full attention has `block_tokens`."""
    best = None
    for candidate in candidates:
        limit = min(candidate.usable_tokens, block_tokens)
        resume = resume_position(candidate.position, stored.get(candidate.name, 0), window, limit, exact=exact)
        if resume > (best[1] if best else 0):
            best = candidate, resume
    return best


def _occurrences(token_ids: TokenIds, pattern: TokenIds) -> list[int]:
    size = len(token_ids) - len(pattern) + 1
    if not len(pattern) or size < 1:
        return []
    token_ids = np.asarray(token_ids, np.uint32)
    matches = [token_ids[at : at + size] == wanted for at, wanted in enumerate(pattern)]
    return [int(at) for at in np.flatnonzero(np.logical_and.reduce(matches))]


def _up_to(limit: int, positions: Sequence[int]) -> list[int]:
    within = positions[: bisect_right(positions, limit)]
    return [*firsts_of_stretches(within), *within[-_NEAREST:]]


def _beyond(limit: int, positions: Sequence[int]) -> Sequence[int]:
    after = bisect_right(positions, limit)
    return positions[after : after + _NEAREST]
