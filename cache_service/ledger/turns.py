"""Turns: commits, replays and imports. Functions of a connection."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from agentmem.errors import Aborted, AlreadyExists, FailedPrecondition, InvalidArgument
from agentmem.kv.ledger import NO_VERSION, Ledger, Version, other_revision
from agentmem.validation import NEVER, AgentKey, IdleTimes
from cache_service import damage
from cache_service.connection import Connection, ask, insert
from cache_service.damage import LedgerDamaged
from cache_service.ledger import agents, branches, segments, snapshots, versions
from cache_service.ledger.agents import NO_CONVERSATION, Conversation, State
from cache_service.ledger.clock import Moment
from cache_service.ledger.segments import EMPTY, FRAGMENT, Head

_MAX_UINT32 = 2**32 - 1


@dataclass(frozen=True)
class Turn:
    """One turn to commit. `record` is the answer, opaque here; an empty request_id can't be replayed.

    `content` follows the `keep_tokens` first tokens of the base, or of the snapshot of `snapshot_version`. Its last
    turn is this one; earlier ones are carried along. `idle_times` and `context_policy` are for an agent that the turn
    creates.
    """

    key: AgentKey
    base: Version
    keep_tokens: int
    content: Ledger
    request_id: str
    request_digest: bytes
    record: bytes
    conversation: Conversation
    idle_times: IdleTimes = NEVER
    context_policy: int = agents.DEFAULT_CONTEXT_POLICY
    snapshot_version: int = 0
    commit_id: bytes = b""
    """To detect the call's repetition; b"": it is not repeated."""


class Committed(NamedTuple):
    version: Version
    request_digest: bytes
    record: bytes


class Opened(NamedTuple):
    """The ledger is None if there is none or the worker has it."""

    version: Version
    ledger: Ledger | None
    turn: Committed | None
    context_policy: int = 0


class Commit(NamedTuple):
    """The new version, or that of a replayed turn, and then the turn. `dropped_tokens`: KV has to follow. `repeated`:
    this call had made the version before.
    """

    version: Version
    replayed: Committed | None = None
    dropped_tokens: bool = False
    repeated: bool = False


def commit(connection: Connection, turn: Turn, now: Moment) -> Commit:
    """Append a turn; dropped tokens stay in an automatic snapshot. A repetition changes nothing.

    Raises InvalidArgument, Aborted if the agent isn't in the base state or the snapshot is gone, FailedPrecondition if
    the kept tokens are another tokenizer's, and LedgerDamaged.
    """
    asked = agents.ask_state(connection, turn.key)  # its lock waits, and later queries see the result
    asked_turn, asked_head = _ask_turn(connection, turn), _ask_head(connection, turn.key)
    state = agents.asked_state(asked) or State(NO_VERSION, EMPTY)
    if turn.base != state.version and (made := _made_by(connection, turn, state.version)) is not None:
        return Commit(made, repeated=True)
    known = _found_turn(asked_turn, state.version.uid)
    if known is not None:
        if known.request_digest != turn.request_digest:
            raise InvalidArgument("request_id", "was used for a turn with other arguments")
        return Commit(known.version, known)
    if turn.base != state.version:
        raise Aborted(_conflict(turn.base, state.version))
    if turn.snapshot_version:
        branches.return_to(connection, turn.key, state, turn.snapshot_version, turn.keep_tokens, now)
        state = agents.existing(connection, turn.key)
        asked_head = _ask_head(connection, turn.key)
    _check_kept(turn, state.head, asked_head)
    drops = turn.keep_tokens < state.head.tokens
    if drops:
        pushed_out = snapshots.add_automatic(connection, state, now)
        snapshots.drop(connection, turn.key, state.version.uid, pushed_out)
    version = versions.following(state.version)
    *_, head = _append(connection, turn.key.namespace, state.head, turn.keep_tokens, turn.content, version.number)
    place = turn.key, version, head, turn.conversation, now
    if state.version == NO_VERSION:
        agents.create(connection, *place, turn.context_policy, turn.idle_times)
    else:
        agents.advance(connection, *place[1:])
    _add(connection, version, head, turn, now)
    return Commit(version, dropped_tokens=drops or turn.snapshot_version > 0)


def open_agent(connection: Connection, key: AgentKey, known: Version, request_id: str) -> Opened:
    """Return the agent's state, its ledger unless `known`, and the turn of `request_id`. Raises LedgerDamaged."""
    state = agents.find(connection, key)
    if state is None:
        return Opened(NO_VERSION, None, None)
    content = None if state.version == known else segments.read(connection, state.head, damage.of_agent(key))
    known_turn = committed(connection, state.version.uid, request_id)
    return Opened(state.version, content, known_turn, state.context_policy)


def committed(connection: Connection, uid: str, request_id: str) -> Committed | None:
    if not request_id:
        return None
    asked = ask(connection, f"{_TURN} WHERE t.uid = ? AND {_NAMED}", (uid, request_id))
    return _found_turn(asked, uid)


_TURN = "SELECT t.uid, t.version, t.revision, request_digest, record FROM turns AS t"
_NAMED = "request_id = ? AND request_id != ''"


def _ask_turn(connection: Connection, turn: Turn) -> Callable[[], Any]:
    of_agent = "JOIN agents AS a ON a.uid = t.uid WHERE a.namespace = ? AND agent_id = ? AND model_id = ?"
    return ask(connection, f"{_TURN} {of_agent} AND {_NAMED}", (*turn.key, turn.request_id))


def _found_turn(asked: Callable[[], Any], uid: str) -> Committed | None:
    row = asked()
    return None if row is None or row[0] != uid else Committed(Version(*row[:3]), *row[3:])


def _ask_head(connection: Connection, key: AgentKey) -> Callable[[], Any]:
    return ask(
        connection,
        "SELECT s.namespace, tokenizer_hash, parent_tokens, parent_bytes, s.tokens, s.text_bytes, s.turns,"
        " generated_tokens FROM agents AS a JOIN segments AS s ON id = head_segment"
        " WHERE a.namespace = ? AND agent_id = ? AND model_id = ?",
        key,
    )


def _made_by(connection: Connection, turn: Turn, present: Version) -> Version | None:
    """Return the version that an earlier call of this commit made."""
    if not turn.commit_id:
        return None
    uid = turn.base.uid or present.uid
    number = turn.base.number + (2 if turn.snapshot_version else 1)
    row = connection.execute(
        "SELECT revision FROM turns WHERE uid = ? AND version = ? AND commit_id = ?", (uid, number, turn.commit_id)
    ).fetchone()
    return None if row is None else Version(uid, number, row[0])


def _check_kept(turn: Turn, head: Head, asked_head: Callable[[], Any]) -> None:
    """Check that a turn can follow a head, without reading its chain: a wrong counter would be built upon."""
    tokenizer = ""
    if head.segment is not None:
        namespace, tokenizer, *place = asked_head() or ("", "")
        if namespace != turn.key.namespace or not segments.holds(place, head):
            raise LedgerDamaged(damage.of_agent(turn.key))
    if turn.keep_tokens > head.tokens:
        raise InvalidArgument("keep_tokens", f"the ledger has {head.tokens} tokens")
    if turn.keep_tokens and tokenizer != turn.content.tokenizer_hash:
        raise FailedPrecondition(
            "the kept tokens were made by another tokenizer; tokenize the text again and keep no tokens"
        )
    if max(head.tokens + len(turn.content), head.text_bytes + len(turn.content.text)) > _MAX_UINT32:
        raise FailedPrecondition("the ledger would be over 4 GiB")


def _conflict(base: Version, present: Version) -> str:
    if present == NO_VERSION:
        return f"the turn is based on version {base.number}, but the agent does not exist (any more)"
    if base == NO_VERSION:
        return f"the turn would create the agent, but it exists, at version {present.number}; read it again"
    if base[:2] == present[:2]:
        return other_revision(present.number)
    other = "" if base.uid == present.uid else " of an agent that was deleted"
    return f"the turn is based on version {base.number}{other}; the present one is {present.number}; read it again"


def create_agent(
    connection: Connection,
    key: AgentKey,
    content: Ledger,
    now: Moment,
    context_policy: int = agents.DEFAULT_CONTEXT_POLICY,
) -> Version:
    """Make an agent: a segment and a version for each turn, and for tokens after the last. Raises AlreadyExists."""
    if agents.find(connection, key) is not None:
        raise AlreadyExists(f"agent {key.agent_id!r} exists; delete it, or choose another id")
    version = NO_VERSION
    heads = [*_append(connection, key.namespace, EMPTY, 0, content)]
    made = [(version := versions.following(version), head) for head in heads]
    head = heads[-1] if heads else EMPTY
    if head.tokens < len(content) or not heads:
        version, part = versions.following(version), _between(content, head.tokens, len(content))
        head = segments.append(connection, key.namespace, head, head.tokens, part, FRAGMENT, version.number)
    agents.create(connection, key, version, head, NO_CONVERSATION, now, context_policy)
    unnamed = Turn(key, NO_VERSION, 0, content, "", b"", b"", NO_CONVERSATION)
    for each, head in made:
        _add(connection, each, head, unnamed, now)
    return version


def _add(connection: Connection, version: Version, head: Head, turn: Turn, now: Moment) -> None:
    row = {
        "uid": version.uid,
        "version": version.number,
        "revision": version.revision,
        "segment": head.segment,
        "namespace": turn.key.namespace,
        "request_id": turn.request_id,
        "request_digest": turn.request_digest,
        "messages": turn.conversation.messages,
        "message_hash": turn.conversation.message_hash,
        "created": now.wall,
        "record": turn.record,
        "commit_id": turn.commit_id,
    }
    insert(connection, "turns", row)


def _append(
    connection: Connection,
    namespace: str,
    head: Head,
    keep_tokens: int,
    content: Ledger,
    version: int = 0,
) -> Iterator[Head]:
    """Yield the heads of the turns of `content`, which have one `version`, or 1, 2, … (0)."""
    start = 0
    for number, turn in enumerate(content.turns, start=1):
        part, made_by = _between(content, start, turn.end_token), version or number
        head = segments.append(connection, namespace, head, keep_tokens, part, turn.generated_tokens, made_by)
        start, keep_tokens = turn.end_token, head.tokens
        yield head


def _between(content: Ledger, start: int, end: int) -> Ledger:
    first, last = content.text_end(start), content.text_end(end)
    offsets = content.offsets[start:end] - np.uint32(first)
    return replace(
        content, token_ids=content.token_ids[start:end], text=content.text[first:last], offsets=offsets, turns=()
    )
