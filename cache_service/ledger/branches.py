"""Forks, cuts and returns: new states made of old ones."""

import logging
from typing import NamedTuple

import numpy as np

from agentmem.errors import Aborted, AlreadyExists, InvalidArgument, NotFound
from agentmem.kv.ledger import Ledger, Version, other_revision
from agentmem.process.logs import event
from agentmem.validation import AgentKey, IdleTimes
from cache_service.connection import Connection, differences
from cache_service.damage import LedgerDamaged
from cache_service.files.holding import WHOLE
from cache_service.ledger import agents, kv_changes, object_references, segments, snapshots, versions
from cache_service.ledger.agents import Agent, Conversation, State
from cache_service.ledger.clock import Moment
from cache_service.ledger.segments import Head
from cache_service.ledger.snapshots import Snapshot

log = logging.getLogger(__name__)

_NEWEST = 16
"""Reading one of 32K tokens takes 2 ms."""


class _Kept(NamedTuple):
    """A state that is kept, and the version (uid, number) whose first tokens it has."""

    head: Head
    conversation: Conversation
    source: tuple[str, int]
    tokens: int
    """`WHOLE`, or up to where they part."""


def fork(
    connection: Connection,
    key: AgentKey,
    target: AgentKey,
    at_version: int | None,
    keep_tokens: int | None,
    idle_times: IdleTimes,
    now: Moment,
    at_revision: bytes = b"",
) -> Agent:
    """Raises NotFound for the agent or version, AlreadyExists, and InvalidArgument for more tokens than there are."""
    state = agents.existing(connection, key)
    if agents.find(connection, target) is not None:
        raise AlreadyExists(f"agent {target.agent_id!r} exists; delete it, or choose another id")
    present = state.version.number
    number = present if at_version is None else at_version
    kept = _cut(connection, _state(connection, state, number, at_revision), keep_tokens)
    version, source = versions.first(), state.version._replace(number=number)
    place = target, version, kept.head, kept.conversation, now
    agents.create(connection, *place, state.context_policy, idle_times, source)
    _give(connection, target, version, kept)
    return agents.described(connection, target)


def trim(
    connection: Connection,
    key: AgentKey,
    keep_tokens: int,
    if_version: int | None,
    now: Moment,
    if_revision: bytes = b"",
) -> Agent:
    """Raises NotFound, Aborted for another version than `if_version` (and `if_revision`, unless empty),
    InvalidArgument.

    Nothing changes if nothing is dropped, or a repetition succeeded before.
    """
    state = agents.existing(connection, key)
    if if_version not in (None, state.version.number):
        if _is_repeated(connection, state, keep_tokens, if_version, if_revision):
            return agents.described(connection, key)
        raise Aborted(f"the agent is at version {state.version.number}, not {if_version}")
    if if_revision not in (b"", state.version.revision):
        raise Aborted(other_revision(state.version.number))
    kept = _cut(connection, _state(connection, state, state.version.number), keep_tokens)
    return _move(connection, key, state, kept, now)


def restore(connection: Connection, key: AgentKey, name: str, now: Moment) -> Agent:
    """Return to a snapshot's state, as a new version, unless it is the present one. Raises NotFound."""
    state = agents.existing(connection, key)
    snapshot = snapshots.existing(connection, state.version.uid, name)
    return _move(connection, key, state, _kept_by(state, snapshot), now)


def find_snapshot(
    connection: Connection,
    key: AgentKey,
    base: Version,
    text: bytes,
    common_tokens: int,
    tokenizer_hash: str,
) -> tuple[Version, Ledger] | None:
    """Return the newest snapshot of this tokenizer whose text shares the longest beginning with `text`.

    It must share more than the `common_tokens` that the agent's state, `base`, does.
    """
    state = agents.find(connection, key)
    if state is None or state.version != base:
        return None
    best, most = None, 0
    for snapshot in snapshots.page(connection, key, None, _NEWEST):
        # what shares more with the present state departs from the prompt where that does
        shared = segments.common_tokens(connection, state.head, snapshot.head)
        if shared > common_tokens or segments.tokenizer_hash(connection, snapshot.head) != tokenizer_hash:
            continue
        try:
            content = segments.read(connection, snapshot.head, f"snapshot {snapshot.name!r}")
        except LedgerDamaged as error:
            event(log, "a snapshot cannot be compared with a prompt", logging.WARNING, error=error.message)
            continue
        common = _common_bytes(content.text, text)
        if common > most and content.tokens_within(common) > common_tokens:
            best, most = (snapshot.version, content), common
    return best


def return_to(connection: Connection, key: AgentKey, state: State, version: int, keep_tokens: int, now: Moment) -> None:
    """Return to the first tokens of the snapshot of `version`. Raises Aborted if that is gone, InvalidArgument."""
    snapshot = snapshots.of_version(connection, state.version.uid, version)
    if snapshot is None:
        raise Aborted(f"the snapshot of version {version} is gone; send the turn again")
    kept = _cut(connection, _kept_by(state, snapshot), keep_tokens)
    _move(connection, key, state, kept, now, always=True)


def _common_bytes(a: bytes, b: bytes) -> int:
    size = min(len(a), len(b))
    differ = np.frombuffer(a, np.uint8, size) != np.frombuffer(b, np.uint8, size)
    return int(differ.argmax()) if differ.any() else size


def _kept_by(state: State, snapshot: Snapshot) -> _Kept:
    conversation = Conversation(state.conversation.label, snapshot.messages, snapshot.message_hash)
    return _Kept(snapshot.head, conversation, snapshot.version[:2], WHOLE)


def _move(
    connection: Connection, key: AgentKey, state: State, kept: _Kept, now: Moment, *, always: bool = False
) -> Agent:
    """Make `kept` the agent's state, as a new version, `always` or unless it is the present one."""
    if kept.head == state.head and not always:
        return agents.described(connection, key)
    drops_tokens = segments.common_tokens(connection, state.head, kept.head) < state.head.tokens
    # It may push out the snapshot that is restored, whose segments the new head must keep.
    pushed_out = snapshots.add_automatic(connection, state, now) if drops_tokens else []
    version = versions.following(state.version)
    agents.advance(connection, version, kept.head, kept.conversation, now)
    _give(connection, key, version, kept)
    snapshots.drop(connection, key, version.uid, pushed_out)
    return agents.described(connection, key)


def _give(connection: Connection, key: AgentKey, version: Version, kept: _Kept) -> None:
    object_references.move(connection, version, kept.source, kept.tokens)
    kv_changes.move(connection, key.namespace, version, kept.source, kept.tokens)


def _state(connection: Connection, state: State, version: int, revision: bytes = b"") -> _Kept:
    """Return the present state, a snapshot's, or the end of a turn. Raises NotFound, also for another revision, unless
    b"".
    """
    uid = state.version.uid
    if version == state.version.number:
        _check_revision(version, state.version.revision, revision)
        return _Kept(state.head, state.conversation, state.version[:2], WHOLE)
    if version > state.version.number:
        raise NotFound("version", str(version), f"the present one is {state.version.number}")
    if (snapshot := snapshots.of_version(connection, uid, version)) is not None:
        _check_revision(version, snapshot.version.revision, revision)
        return _kept_by(state, snapshot)
    if lock := differences(connection).for_change:
        # The last agent to leave it cuts or erases it.
        which = "SELECT 1 FROM segments WHERE id = (SELECT segment FROM turns WHERE uid = ? AND version = ?)"
        connection.execute(f"{which}{lock}", (uid, version)).fetchone()
    row = connection.execute(
        "SELECT s.id, s.parent_tokens + s.tokens, s.parent_bytes + s.text_bytes, s.turns, t.messages, t.message_hash,"
        " t.revision FROM turns AS t JOIN segments AS s ON s.id = t.segment WHERE t.uid = ? AND t.version = ?",
        (uid, version),
    ).fetchone()
    if row is None:
        raise NotFound("version", str(version), "it is not kept any more, or never was")
    head, conversation = Head(*row[:4]), Conversation(state.conversation.label, *row[4:6])
    _check_revision(version, row[6], revision)
    segments.check(connection, head)
    shared = segments.common_tokens(connection, state.head, head)
    return _Kept(head, conversation, state.version[:2], shared)


def _check_revision(version: int, found: bytes, wanted: bytes) -> None:
    if wanted not in (b"", found):
        raise NotFound("version", str(version), "the version of that number is another one; a backup was restored")


def _cut(connection: Connection, kept: _Kept, tokens: int | None) -> _Kept:
    if tokens is None or tokens == kept.head.tokens:
        return kept
    if tokens > kept.head.tokens:
        raise InvalidArgument("keep_tokens", f"the ledger has {kept.head.tokens} tokens")
    conversation = Conversation(kept.conversation.label, 0, b"")
    return _Kept(_cut_head(connection, kept.head, tokens), conversation, kept.source, min(kept.tokens, tokens))


def _cut_head(connection: Connection, head: Head, tokens: int) -> Head:
    found = segments.cut(connection, head, tokens)
    return segments.empty(connection, head) if found.segment is None else found


def _is_repeated(connection: Connection, state: State, keep_tokens: int, if_version: int, if_revision: bytes) -> bool:
    if state.version.number != if_version + 1:
        return False
    before = snapshots.of_version(connection, state.version.uid, if_version)
    if before is None or keep_tokens >= before.head.tokens or if_revision not in (b"", before.version.revision):
        return False
    return _cut_head(connection, before.head, keep_tokens) == state.head
