"""What to resume with, of all that was found: blocks and, for hybrid models, a window. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from inference_service.memory.restore import Candidate, Lookup
from inference_service.memory.windows import WindowCandidate, choose_window


@dataclass(frozen=True)
class Choice:
    """Blocks in order, those in the pool first, and the window to resume with: `surplus` tokens of it are cut off.

    Each block's `usable_tokens` are those that are taken.
    """

    hot: Sequence[Candidate]
    warm: Sequence[Candidate]
    window: WindowCandidate | None = None
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


def choose_blocks(lookup: Lookup, pool: Collection[bytes], files: Collection[bytes]) -> Choice:
    """The longest gapless run of blocks in the pool, and then of files."""
    chosen = lookup.choose({*pool, *files})
    hot = list(takewhile(lambda candidate: candidate.header.chain_hash in pool, chosen))
    warm = list(takewhile(lambda candidate: candidate.header.chain_hash in files, chosen[len(hot) :]))
    return Choice(hot, warm)


def choose_position(
    blocks: Choice, candidates: Sequence[WindowCandidate], stored: Mapping[bytes, int], window: int
) -> Choice:
    """As much of `blocks` as a hybrid model can resume with; `stored` says how many tokens found windows hold."""
    best = choose_window(candidates, stored, window, blocks.tokens)
    if best is None:
        return Choice((), ())
    found, tokens = best
    hot = _cut(blocks.hot, tokens)
    warm = _cut(blocks.warm, tokens - sum(candidate.usable_tokens for candidate in hot))
    return Choice(hot, warm, found, found.position - tokens)


def _cut(candidates: Sequence[Candidate], tokens: int) -> list[Candidate]:
    kept = []
    for candidate in candidates:
        if tokens <= 0:
            break
        kept.append(candidate._replace(usable_tokens=min(tokens, candidate.usable_tokens)))
        tokens -= candidate.usable_tokens
    return kept
