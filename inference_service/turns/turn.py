"""One turn on its way through the worker. Each step adds what it finds out; its fields do not exist before.

step                              sets                                     thread
runner.TurnRunner.start           request … timing                         event loop
planning.TurnPlanner.plan         base … note                              event loop; text on `planning` threads
pool.memory.ModelMemory.reserve   reservation                              event loop
restoring.Restorer.find           restored                                 event loop; files on `files` threads,
                                                                           memory of blocks by the engine
runner.TurnRunner._generated      generated, and started when it starts    engine; `started` on the event loop
prompt_sharing.PromptSharing      restored, once more, if others have      event loop, told by the engine's thread
                                  computed more of its prompt meanwhile
committing.commit                 version, message_hashes                  event loop; text on `planning` threads
pool_writer.PoolWriter.keep       nothing: the KV's blocks get names       event loop; checkpoint by the engine's thread
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
    """The model's summary of dropped turns, or why there is none."""

    text: str = ""
    failure: str = ""

    @property
    def marked(self) -> bytes:
        """The note as it stands in the memory, before what the user said next."""
        return f"[Earlier turns are left out; this note replaces them: {self.text}]\n\n".encode() if self.text else b""


NO_NOTE: Final = Note()


@dataclass(eq=False, repr=False)
class Turn:
    """A turn, a probe of one, or the turn that writes a note. The event loop owns it."""

    request: TurnRequest
    hint: Hint | None = None
    """The hint of this turn when it arrived."""
    stream: TurnStream = field(default_factory=TurnStream)
    timing: Timing = field(default_factory=Timing)

    # Planned. A second plan, with a note, replaces all of it.
    base: Version = field(init=False)
    ledger: Ledger = field(init=False)
    """The base's, or the snapshot's; in the present tokenizer, at the turn's time."""
    snapshot_version: int = field(init=False)
    """The version of the snapshot that it continues; 0 for the base."""
    plan: Plan = field(init=False)
    keep_tokens: int = field(init=False)
    """How many of the ledger's first tokens the commit keeps; 0 where the ledger was tokenized again."""
    shared_tokens: int = field(init=False)
    """How many of the base's own tokens the commit keeps."""
    dropped_tokens: int = field(init=False)
    """How many of the base's tokens the prompt leaves; to tokenize a text again drops none."""
    appended: bool = field(init=False)
    """The input was taken as what is new."""
    retokenized: bool = field(init=False)
    """The base's ledger was of another tokenizer."""
    opening_bytes: int = field(init=False)
    """The ledger that the turn makes opens with so many; see Ledger."""
    policy: Policy = field(init=False)
    """For a memory that outgrows the context."""
    lookup: Lookup = field(init=False)
    decoding: Decoding | None = field(init=False)
    """None for Prefill."""
    context_remaining: int = field(init=False)
    """Tokens that the context has after the prompt."""
    note: Note = NO_NOTE

    reservation: Reservation = field(init=False)
    restored: Restored = field(init=False)
    started: inference_pb2.Started | None = None
    """The first event, once the engine has started the turn."""
    generated: Generated = field(default_factory=Generated)
    """The engine writes here until it is done."""
    version: Version = field(init=False)
    """Made by the commit."""
    message_hashes: list[bytes] = field(init=False)
    """Hashes of its conversation's messages, where it was a whole chat."""

    @property
    def wants_note(self) -> bool:
        """Return whether a note is to stand for what is dropped, and none was tried yet."""
        return self.plan.trim is not None and self.policy == SUMMARIZE and self.note == NO_NOTE

    @property
    def carried_turns(self) -> tuple[TurnPlace, ...]:
        """Turns of the ledger that the commit brings along, at their new places."""
        return self.plan.trim.carried_turns if self.plan.trim is not None else ()

    @property
    def most_tokens(self) -> int:
        """Tokens of prompt and answer, at most."""
        return len(self.plan.sequence) + (self.decoding.max_tokens if self.decoding else 0)

    @property
    def earlier_checkpoints(self) -> set[bytes]:
        """Names of those from which a turn may go on that leaves its ledger before the end; else none."""
        cut = self.plan.keep_tokens < len(self.ledger)
        return {window.name for window in self.lookup.checkpoints} if cut else set()

    @property
    def miss_reason(self) -> Reason:
        """Why not more was reused; unspecified where all that could be was. Others may have computed a part of a new
        agent's prompt that it cannot go on from.
        """
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
        """Return what is dropped for the prompt to fit the context; None if nothing is."""
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
