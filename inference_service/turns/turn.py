"""One turn on its way through the worker. Each step sets fields:

runner.TurnRunner.start           request … timing
planning.TurnPlanner.plan         base … note
pool.memory.ModelMemory.reserve   reservation
restoring.Restorer.find           restored
runner.TurnRunner._generated      generated (engine thread), started
prompt_sharing.PromptSharing      restored, if others computed more of the prompt
committing.commit                 version, message_hashes
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from agentmem.kv.hints import Hint
from agentmem.kv.ledger import Ledger, TurnPlace, Version
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.validation import automatic_snapshot
from inference_service.domain import TurnRequest
from inference_service.engine.generation import Decoding, Generated
from inference_service.memory.match import Reason
from inference_service.memory.plan import Plan
from inference_service.memory.restore import Lookup
from inference_service.pool.admission import Reservation
from inference_service.turns.restored import Restored
from inference_service.turns.stream import TurnStream
from inference_service.turns.timing import Timing

Policy: TypeAlias = "types_pb2.ContextPolicy.ValueType"
REFUSE: Final = types_pb2.CONTEXT_POLICY_REFUSE
TRIM: Final = types_pb2.CONTEXT_POLICY_TRIM
SUMMARIZE: Final = types_pb2.CONTEXT_POLICY_SUMMARIZE


class Note(NamedTuple):
    """A summary of dropped turns, or why there is none."""

    text: str = ""
    failure: str = ""

    @property
    def marked(self) -> bytes:
        """The note in the memory, before the user's next words."""
        return f"[Earlier turns are left out; this note replaces them: {self.text}]\n\n".encode() if self.text else b""


NO_NOTE: Final = Note()


@dataclass(eq=False, repr=False)
class Turn:
    """A turn, a probe, or the turn that writes a note. The event loop owns it."""

    request: TurnRequest
    hint: Hint | None = None
    """As the turn arrived."""
    stream: TurnStream = field(default_factory=TurnStream)
    timing: Timing = field(default_factory=Timing)

    # Planned; a second plan, with a note, replaces it.
    base: Version = field(init=False)
    ledger: Ledger = field(init=False)
    """The base's or a snapshot's, in the present tokenizer."""
    snapshot_version: int = field(init=False)
    """0 for the base."""
    plan: Plan = field(init=False)
    keep_tokens: int = field(init=False)
    """The ledger's tokens that the commit keeps; 0 if tokenized again."""
    shared_tokens: int = field(init=False)
    """The base's tokens that the commit keeps."""
    dropped_tokens: int = field(init=False)
    """The base's tokens that the prompt leaves; none for a new tokenizer."""
    appended: bool = field(init=False)
    """The input was taken as new."""
    retokenized: bool = field(init=False)
    """The base's ledger was of another tokenizer."""
    opening_bytes: int = field(init=False)
    """See Ledger."""
    policy: Policy = field(init=False)
    lookup: Lookup = field(init=False)
    decoding: Decoding | None = field(init=False)
    """None for Prefill."""
    context_remaining: int = field(init=False)
    """After the prompt."""
    note: Note = NO_NOTE

    reservation: Reservation = field(init=False)
    restored: Restored = field(init=False)
    started: inference_pb2.Started | None = None
    generated: Generated = field(default_factory=Generated)
    """The engine writes here."""
    version: Version = field(init=False)
    message_hashes: list[bytes] = field(init=False)

    @property
    def wants_note(self) -> bool:
        """Return whether a note is wanted and was not tried."""
        return self.plan.trim is not None and self.policy == SUMMARIZE and self.note == NO_NOTE

    @property
    def carried_turns(self) -> tuple[TurnPlace, ...]:
        """Turns of the ledger that a trim brings along."""
        return self.plan.trim.carried_turns if self.plan.trim is not None else ()

    @property
    def most_tokens(self) -> int:
        """Prompt and answer."""
        return len(self.plan.sequence) + (self.decoding.max_tokens if self.decoding else 0)

    @property
    def earlier_checkpoints(self) -> set[bytes]:
        """Checkpoints to resume at before the ledger's end."""
        cut = self.plan.keep_tokens < len(self.ledger)
        return {window.name for window in self.lookup.checkpoints} if cut else set()

    @property
    def miss_reason(self) -> Reason:
        """Why not more was reused. Others may have computed a part of a new agent's prompt that it cannot resume at."""
        of_others = self.plan.reason == types_pb2.MISS_REASON_ABSENT
        if of_others and self.restored.reason == types_pb2.MISS_REASON_NOT_TRIMMABLE:
            return self.restored.reason
        all_reused = self.restored.tokens >= self.plan.keep_tokens
        return self.plan.reason if all_reused else self.restored.reason or self.plan.reason

    def cache_report(self) -> types_pb2.CacheReport:
        return types_pb2.CacheReport(
            match=self.plan.kind,
            cached=self.restored.by_tier,
            prompt_tokens=len(self.plan.sequence),
            miss_reason=self.miss_reason,
            load_bytes=self.restored.load_bytes,
            snapshot_version=self.snapshot_version,
        )

    def context_trim(self) -> types_pb2.ContextTrim | None:
        """Return what is dropped for the context, if anything."""
        trim = self.plan.trim
        if trim is None:
            return None
        return types_pb2.ContextTrim(
            policy=TRIM if self.note.failure else self.policy,
            dropped_tokens=trim.dropped_tokens,
            dropped_turns=trim.dropped_turns,
            snapshot=automatic_snapshot(self.base.number) if self.request.commits else "",
            summary=self.note.text,
            summary_failure=self.note.failure,
        )
