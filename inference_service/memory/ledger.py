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


class TurnPlace(NamedTuple):
    """A turn that is wholly in a ledger: how many tokens there were at its end, and how many of them it generated.

    `messages` is how many messages the conversation had then, the answer included, and `message_hash` the last of their
    hash chain; 0 where the turn was not of a whole chat, or it isn't known.
    """

    end_token: int
    generated_tokens: int
    messages: int = 0
    message_hash: bytes = b""

    def ending_at(self, token: int) -> "TurnPlace":
        """The turn without its end."""
        return TurnPlace(token, max(0, self.generated_tokens - (self.end_token - token)))


@dataclass(frozen=True)
class Ledger:
    """Token ids, the bytes they stand for, and each token's end offset in those bytes; and its turns, oldest first.

    Invariants: as many offsets as tokens, never decreasing, the last one is len(text); no turn ends behind the tokens.

    `opening_bytes` of the text are the system prompt and whatever else stands before the first user's message: they
    stay when older turns are dropped. It may be more than there is, where no user has spoken yet; 0 is not known.
    `template_time` is the moment that chat templates see as the present, in ISO 8601; "" is not known.
    """

    token_ids: tuple[int, ...] = ()
    text: bytes = b""
    offsets: tuple[int, ...] = ()
    tokenizer_hash: str = ""
    turns: tuple[TurnPlace, ...] = ()
    opening_bytes: int = 0
    template_time: str = ""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def ends_with_an_answer(self) -> bool:
        """Whether the last tokens were generated."""
        return bool(self.turns) and self.turns[-1].end_token == len(self) and self.turns[-1].generated_tokens > 0

    def kept(self, tokens: int) -> "Ledger":
        """The first `tokens` tokens, and the turns that are wholly in them."""
        if tokens == len(self):
            return self
        end = self.offsets[tokens - 1] if tokens else 0
        turns = tuple(turn for turn in self.turns if turn.end_token <= tokens)
        return Ledger(
            *(self.token_ids[:tokens], self.text[:end], self.offsets[:tokens], self.tokenizer_hash, turns),
            opening_bytes=min(self.opening_bytes, end),
            template_time=self.template_time,
        )

    def followed_by(
        self,
        token_ids: Sequence[int],
        pieces: Sequence[bytes],
        tokenizer_hash: str,
        generated_tokens: int | None = None,
        carried_turns: Sequence[TurnPlace] = (),
        message_hashes: Sequence[bytes] = (),
    ) -> "Ledger":
        """The ledger with more tokens, each standing for one of `pieces`.

        They are a turn that ends with so many generated tokens, or none where `generated_tokens` is None. Before it
        there may be `carried_turns` among them, whose places are the new ledger's. `message_hashes` are the hash chain
        of the conversation at the turn's end, where it is known.
        """
        end = len(self) + len(token_ids)
        known = (len(message_hashes), message_hashes[-1]) if message_hashes else (0, b"")
        turn = () if generated_tokens is None else (TurnPlace(end, generated_tokens, *known),)
        return Ledger(
            (*self.token_ids, *token_ids),
            self.text + b"".join(pieces),
            (*self.offsets, *(len(self.text) + end for end in accumulate(map(len, pieces)))),
            tokenizer_hash,
            (*self.turns, *carried_turns, *turn),
            self.opening_bytes,
            self.template_time,
        )
