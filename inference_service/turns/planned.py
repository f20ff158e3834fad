"""What is known of a turn before the engine takes it up: the plan, and then the KV that it starts from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from agentmem.keys import automatic_snapshot
from agentmem.v1 import types_pb2
from inference_service.engine.generation import Decoding
from inference_service.engine.geometry import Caches
from inference_service.memory.ledger import Ledger, TurnPlace, Version
from inference_service.memory.match import Reason
from inference_service.memory.plan import Plan
from inference_service.memory.restore import Lookup
from inference_service.memory.windows import WindowCandidate

Policy: TypeAlias = "types_pb2.ContextPolicy.ValueType"
REFUSE, SUMMARIZE = types_pb2.CONTEXT_POLICY_REFUSE, types_pb2.CONTEXT_POLICY_SUMMARIZE


@dataclass(frozen=True)
class Reuse:
    """KV to start from: tokens by the tier they were found in. `caches` makes them, once, on the engine thread.

    `reason` says why there is not more; `windows` are windows of the sequence that are on disk: stored tokens by
    position.
    """

    caches: Callable[[], Caches]
    reason: Reason = types_pb2.MISS_REASON_UNSPECIFIED
    hot_tokens: int = 0
    warm_tokens: int = 0
    remote_tokens: int = 0
    load_bytes: int = 0
    load_seconds: float = 0.0
    windows: Mapping[int, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.hot_tokens + self.warm_tokens + self.remote_tokens

    @property
    def tier(self) -> types_pb2.Tier.ValueType:
        """The slowest tier used."""
        return self.by_tier[-1].tier if self.tokens else types_pb2.TIER_NONE

    @property
    def by_tier(self) -> list[types_pb2.TierTokens]:
        """Tokens by tier, fastest first, without empty ones."""
        tiers = (
            (types_pb2.TIER_HOT, self.hot_tokens),
            (types_pb2.TIER_WARM, self.warm_tokens),
            (types_pb2.TIER_REMOTE, self.remote_tokens),
        )
        return [types_pb2.TierTokens(tier=tier, tokens=tokens) for tier, tokens in tiers if tokens]


class Note(NamedTuple):
    """What stands for dropped turns, in the model's words; or why nothing does."""

    text: str = ""
    failure: str = ""

    @property
    def marked(self) -> bytes:
        """The note as it stands in the memory, before what the user said next."""
        return f"[Earlier turns are left out; this note replaces them: {self.text}]\n\n".encode() if self.text else b""


NO_NOTE = Note()


@dataclass(frozen=True)
class Planned:
    """A turn that could be computed. The first `keep_tokens` tokens of `ledger` stay in the commit.

    `ledger` is that of the state that the turn continues: the base, or, where `snapshot_version` is not 0, the snapshot
    of that version. The commit keeps `shared_tokens` of the base's own tokens and drops `dropped_tokens`.

    Where the base's ledger is of another tokenizer it was `retokenized`: `ledger` is its text under the present one,
    and none of the base's tokens stay; to tokenize a text again drops none. Its `template_time` is the turn's, and the
    agent's from then on.

    `lookup` and `windows` say which KV would serve; the agent's own does not where that is `incompatible`, because the
    model's files have changed since it was computed. `decoding` is None for Prefill. `appended`: the input was taken as
    what is new.

    `opening_bytes` are those of the ledger that the turn makes. `policy` is the agent's; `note` stands for what the
    plan drops, where that asks for it.
    """

    base: Version
    ledger: Ledger
    snapshot_version: int
    keep_tokens: int
    shared_tokens: int
    dropped_tokens: int
    retokenized: bool
    incompatible: bool
    plan: Plan
    lookup: Lookup
    windows: tuple[WindowCandidate, ...]
    decoding: Decoding | None
    context_remaining: int
    appended: bool
    opening_bytes: int = 0
    policy: Policy = types_pb2.CONTEXT_POLICY_TRIM
    note: Note = NO_NOTE

    @property
    def wants_note(self) -> bool:
        """Whether something is dropped that a note is to stand for, and nobody has tried to write it yet."""
        return self.plan.trim is not None and self.policy == SUMMARIZE and self.note == NO_NOTE

    @property
    def carried_turns(self) -> tuple[TurnPlace, ...]:
        """Turns of the ledger that the commit brings along, at their new places."""
        return self.plan.trim.carried_turns if self.plan.trim is not None else ()

    def context_trim(self, *, commits: bool) -> types_pb2.ContextTrim | None:
        """What is dropped for the prompt to fit the context, for the caller."""
        trim = self.plan.trim
        if trim is None:
            return None
        return types_pb2.ContextTrim(
            policy=types_pb2.CONTEXT_POLICY_TRIM if self.note.failure else self.policy,
            dropped_tokens=trim.dropped_tokens,
            dropped_turns=trim.dropped_turns,
            snapshot=automatic_snapshot(self.base.number) if commits else "",
            summary=self.note.text,
            summary_failure=self.note.failure,
        )

    @property
    def most_tokens(self) -> int:
        """What prompt and answer can grow to."""
        return len(self.plan.sequence) + (self.decoding.max_tokens if self.decoding else 0)


@dataclass(frozen=True)
class Prepared(Planned):
    """A turn that can be computed now, from `reuse`."""

    reuse: Reuse = field(kw_only=True)

    @property
    def miss_reason(self) -> Reason:
        """Why not more was reused; unspecified where all that could be was."""
        if self.plan.reason:
            return self.plan.reason
        return self.reuse.reason if self.reuse.tokens < self.plan.keep_tokens else types_pb2.MISS_REASON_UNSPECIFIED

    @property
    def report(self) -> types_pb2.CacheReport:
        """What memory gives, for the caller."""
        return types_pb2.CacheReport(
            match=self.plan.kind,
            cached=self.reuse.by_tier,
            prompt_tokens=len(self.plan.sequence),
            miss_reason=self.miss_reason,
            load_bytes=self.reuse.load_bytes,
            snapshot_version=self.snapshot_version,
        )
