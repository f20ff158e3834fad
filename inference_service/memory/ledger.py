"""The ledger: what an agent's memory is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple


class Version(NamedTuple):
    """(uid, number) of a ledger state. ("", 0) is the agent that does not exist."""

    uid: str = ""
    number: int = 0


NO_VERSION = Version()


@dataclass(frozen=True)
class Ledger:
    """Token ids, the bytes they stand for, and each token's end offset in those bytes.

    Invariants: as many offsets as tokens, never decreasing, the last one is len(text).
    """

    token_ids: tuple[int, ...] = ()
    text: bytes = b""
    offsets: tuple[int, ...] = ()
    tokenizer_hash: str = ""

    def __len__(self) -> int:
        return len(self.token_ids)

    def kept(self, tokens: int) -> "Ledger":
        """The first `tokens` tokens."""
        end = self.offsets[tokens - 1] if tokens else 0
        return Ledger(self.token_ids[:tokens], self.text[:end], self.offsets[:tokens], self.tokenizer_hash)

    def followed_by(self, token_ids: Sequence[int], pieces: Sequence[bytes], tokenizer_hash: str) -> "Ledger":
        """The ledger with more tokens, each standing for one of `pieces`."""
        return Ledger(
            (*self.token_ids, *token_ids),
            self.text + b"".join(pieces),
            (*self.offsets, *(len(self.text) + end for end in accumulate(map(len, pieces)))),
            tokenizer_hash,
        )
