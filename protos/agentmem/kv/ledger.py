"""An agent's memory as worker and store know it: its version, turns and ledger."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from agentmem.v1 import cache_store_pb2, types_pb2

Uint32: TypeAlias = npt.NDArray[np.uint32]
TokenIds: TypeAlias = Sequence[int] | Uint32
"""Results are arrays."""


class Version(NamedTuple):
    """("", 0, b"") is an agent that does not exist. A restored backup can reuse a number, but not a revision of 16
    random bytes.
    """

    uid: str = ""
    number: int = 0
    revision: bytes = b""

    @classmethod
    def from_proto(cls, version: types_pb2.AgentVersion) -> Self:
        return cls(version.uid, version.version, version.revision)

    def to_proto(self) -> types_pb2.AgentVersion:
        return types_pb2.AgentVersion(uid=self.uid, version=self.number, revision=self.revision)


NO_VERSION = Version()


def other_revision(number: int) -> str:
    return (
        f"the agent is at version {number}, which is not the one that is meant: it has gone on, or a backup was"
        " restored; read it again"
    )


class TurnPlace(NamedTuple):
    """A turn that is wholly in a ledger.

    `messages` and `message_hash` are of the conversation's hash chain at its end, answer included; 0 if not known as a
    chat. `version` 0 is not known.
    """

    end_token: int
    generated_tokens: int
    messages: int = 0
    message_hash: bytes = b""
    version: int = 0

    @classmethod
    def from_proto(cls, turn: cache_store_pb2.LedgerTurn) -> Self:
        return cls(turn.end_token, turn.generated_tokens, turn.messages, turn.message_hash, turn.version)

    def to_proto(self) -> cache_store_pb2.LedgerTurn:
        return cache_store_pb2.LedgerTurn(**self._asdict())

    def ending_at(self, token: int) -> "TurnPlace":
        return TurnPlace(token, max(0, self.generated_tokens - (self.end_token - token)))


def _no_tokens() -> Uint32:
    return np.empty(0, np.uint32)


@dataclass(frozen=True, eq=False)
class Ledger:
    """Token ids [tokens], their text as bytes, each token's end in it [tokens], and turns, oldest first.

    Sequences of integers become arrays. `opening_bytes` is the length of what precedes the first user's words and stays
    when older turns are dropped; it may exceed the text; 0: not known. `template_time` is in ISO 8601; "": not known.
    """

    token_ids: Uint32 = field(default_factory=_no_tokens)
    text: bytes = b""
    offsets: Uint32 = field(default_factory=_no_tokens)
    tokenizer_hash: str = ""
    turns: tuple[TurnPlace, ...] = ()
    opening_bytes: int = 0
    template_time: str = ""

    def __post_init__(self) -> None:
        for name in ("token_ids", "offsets"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.uint32))

    @classmethod
    def from_proto(cls, ledger: cache_store_pb2.Ledger) -> Self:
        """Without checks. 128,000 tokens take 0.1 ms."""
        return cls(
            token_ids=np.array(ledger.token_ids, np.uint32),
            text=ledger.text,
            offsets=np.array(ledger.offsets, np.uint32),
            tokenizer_hash=ledger.tokenizer_hash,
            turns=tuple(map(TurnPlace.from_proto, ledger.turns)),
            opening_bytes=ledger.opening_bytes,
            template_time=ledger.template_time,
        )

    def to_proto(self) -> cache_store_pb2.Ledger:
        """128,000 tokens take 8 ms."""
        return cache_store_pb2.Ledger(
            token_ids=self.token_ids.tolist(),
            text=self.text,
            offsets=self.offsets.tolist(),
            tokenizer_hash=self.tokenizer_hash,
            turns=[turn.to_proto() for turn in self.turns],
            opening_bytes=self.opening_bytes,
            template_time=self.template_time,
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Ledger)
            and np.array_equal(self.token_ids, other.token_ids)
            and np.array_equal(self.offsets, other.offsets)
            and (self.text, self.tokenizer_hash, self.turns) == (other.text, other.tokenizer_hash, other.turns)
            and (self.opening_bytes, self.template_time) == (other.opening_bytes, other.template_time)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def ends_with_an_answer(self) -> bool:
        return bool(self.turns) and self.turns[-1].end_token == len(self) and self.turns[-1].generated_tokens > 0

    def text_end(self, tokens: int) -> int:
        return int(self.offsets[tokens - 1]) if tokens else 0

    def tokens_within(self, size: int) -> int:
        """Return the number of tokens wholly within the first `size` bytes."""
        return int(np.searchsorted(self.offsets, size, side="right"))

    def kept(self, tokens: int) -> "Ledger":
        """Return the first tokens, and the turns wholly in them."""
        if tokens == len(self):
            return self
        end = self.text_end(tokens)
        return replace(
            self,
            token_ids=self.token_ids[:tokens],
            text=self.text[:end],
            offsets=self.offsets[:tokens],
            turns=tuple(turn for turn in self.turns if turn.end_token <= tokens),
            opening_bytes=min(self.opening_bytes, end),
        )

    def followed_by(
        self,
        token_ids: TokenIds,
        pieces: Sequence[bytes],
        tokenizer_hash: str,
        generated_tokens: int | None = None,
        carried_turns: Sequence[TurnPlace] = (),
        message_hashes: Sequence[bytes] = (),
    ) -> "Ledger":
        """They are a turn that ends with `generated_tokens`, or no turn if that is None. `carried_turns` are earlier
        turns among them, placed in the new ledger. `message_hashes` are the conversation's, if known.
        """
        end = len(self) + len(token_ids)
        known = (len(message_hashes), message_hashes[-1]) if message_hashes else (0, b"")
        turn = () if generated_tokens is None else (TurnPlace(end, generated_tokens, *known),)
        ends = np.fromiter(map(len, pieces), np.uint32, len(pieces)).cumsum(dtype=np.uint32)
        return replace(
            self,
            token_ids=np.concatenate([self.token_ids, np.asarray(token_ids, np.uint32)]),
            text=self.text + b"".join(pieces),
            offsets=np.concatenate([self.offsets, ends + np.uint32(len(self.text))]),
            tokenizer_hash=tokenizer_hash,
            turns=(*self.turns, *carried_turns, *turn),
        )


def common_length(a: bytes | TokenIds, b: bytes | TokenIds) -> int:
    size = min(len(a), len(b))
    differs = _array(a)[:size] != _array(b)[:size]
    return int(differs.argmax()) if differs.any() else size


def ordered(token_ids: TokenIds) -> bytes:
    """Return big-endian uint32, which sorts like the tokens."""
    return _array(token_ids).astype(">u4").tobytes()


def unordered(data: bytes) -> Uint32:
    return np.frombuffer(data, ">u4").astype(np.uint32)


def shared_tokens(a: bytes, b: bytes) -> int:
    return common_length(a, b) // 4


def _array(values: bytes | TokenIds) -> npt.NDArray[np.uint8] | Uint32:
    return np.frombuffer(values, np.uint8) if isinstance(values, bytes) else np.asarray(values, np.uint32)
