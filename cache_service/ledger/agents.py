"""Agents: rows, listing and deletion."""

from collections.abc import Callable
from typing import Any, NamedTuple

from agentmem.errors import NotFound
from agentmem.kv.ledger import Version
from agentmem.v1 import types_pb2
from agentmem.validation import NEVER, AgentKey, IdleTimes
from cache_service.connection import Connection, ask, differences, insert
from cache_service.ledger import kv_changes, object_references
from cache_service.ledger import segments as ledger
from cache_service.ledger.clock import Moment
from cache_service.ledger.segments import Head

DEFAULT_CONTEXT_POLICY = int(types_pb2.CONTEXT_POLICY_TRIM)


class Conversation(NamedTuple):
    """For FindAgent: label, number of messages, last hash of their chain."""

    label: str
    messages: int
    message_hash: bytes


NO_CONVERSATION = Conversation("", 0, b"")


class State(NamedTuple):
    """`context_policy` is 0 without an agent."""

    version: Version
    head: Head
    conversation: Conversation = NO_CONVERSATION
    context_policy: int = 0

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of agents and of snapshots."""
        return {
            "version": self.version.number,
            "revision": self.version.revision,
            "head_segment": self.head.segment,
            "tokens": self.head.tokens,
            "text_bytes": self.head.text_bytes,
            "turns": self.head.turns,
            "messages": self.conversation.messages,
            "message_hash": self.conversation.message_hash,
        }


class Agent(NamedTuple):
    """Times are nanoseconds, since 1970 or the last use."""

    key: AgentKey
    version: Version
    tokens: int
    turns: int
    text_bytes: int
    remote: int
    """1 if some of its KV is in the object store, else 0."""
    created: int
    updated: int
    pinned: int
    ttl: int | None
    delete_after: int | None
    context_policy: int
    template_time: str
    forked_from: str | None = None
    """While that exists."""
    forked_version: int | None = None


def ask_state(connection: Connection, key: AgentKey) -> Callable[[], Any]:
    return ask(
        connection,
        "SELECT uid, version, revision, head_segment, tokens, text_bytes, turns, label, messages, message_hash,"
        " context_policy FROM agents"
        f" WHERE namespace = ? AND agent_id = ? AND model_id = ?{differences(connection).for_change}",
        key,
    )


def asked_state(asked: Callable[[], Any]) -> State | None:
    row = asked()
    return None if row is None else State(Version(*row[:3]), Head(*row[3:7]), Conversation(*row[7:10]), row[10])


def find(connection: Connection, key: AgentKey) -> State | None:
    return asked_state(ask_state(connection, key))


def existing(connection: Connection, key: AgentKey) -> State:
    """Raises NotFound."""
    state = find(connection, key)
    if state is None:
        raise NotFound("agent", key.agent_id)
    return state


def create(
    connection: Connection,
    key: AgentKey,
    version: Version,
    head: Head,
    conversation: Conversation,
    now: Moment,
    context_policy: int = DEFAULT_CONTEXT_POLICY,
    idle_times: IdleTimes = NEVER,
    source: Version | None = None,
) -> None:
    """`source` is what it is a fork of."""
    row = {
        "uid": version.uid,
        **key._asdict(),
        **_columns(version, head, conversation, now),
        "created": now.wall,
        "context_policy": context_policy,
        **idle_times._asdict(),
    }
    if source is not None:
        row |= {"forked_uid": source.uid, "forked_version": source.number}
    insert(connection, "agents", row)


def change(connection: Connection, /, key: AgentKey, **columns: int | None) -> Agent:
    """Set `pinned`, `context_policy`, or `ttl` and `delete_after`. Raises NotFound."""
    assignments = ", ".join(f"{column} = :{column}" for column in columns)
    connection.execute(
        f"UPDATE agents SET {assignments}"
        " WHERE namespace = :namespace AND agent_id = :agent_id AND model_id = :model_id",
        {**columns, **key._asdict()},
    )
    return described(connection, key)


def advance(connection: Connection, version: Version, head: Head, conversation: Conversation, now: Moment) -> None:
    """Move an agent, whose state this transaction has read."""
    columns = _columns(version, head, conversation, now)
    assignments = ", ".join(f"{column} = ?" for column in columns)
    connection.execute(f"UPDATE agents SET {assignments} WHERE uid = ?", (*columns.values(), version.uid))


def may_publish(connection: Connection, uid: str) -> bool:
    """Return whether it exists, or (uid "") does not exist yet."""
    return not uid or connection.execute("SELECT 1 FROM agents WHERE uid = ?", (uid,)).fetchone() is not None


def described(connection: Connection, key: AgentKey) -> Agent:
    """Raises NotFound."""
    for agent in page(connection, key, None, 1):
        return agent
    raise NotFound("agent", key.agent_id)


def page(connection: Connection, key: AgentKey, after: tuple[str, str] | None, limit: int) -> list[Agent]:
    """Return agents by (agent_id, model_id), after `after`; an empty agent_id or model_id is any."""
    condition, values = _matching(key)
    beyond = "" if after is None else " AND (a.agent_id, a.model_id) > (?, ?)"
    rows = connection.execute(_PAGE.format(condition=condition + beyond), (*values, *(after or ()), limit))
    return [Agent(AgentKey(*row[:3]), Version(*row[3:6]), *row[6:]) for row in rows]


def delete(connection: Connection, key: AgentKey) -> int:
    """Erase an agent (on all models if model_id is empty); return how many there were.

    Segments that others need stay. Files follow, even of turns that were never committed.
    """
    condition, values = _matching(key)
    found = f"SELECT a.uid FROM agents AS a WHERE {condition}{differences(connection).for_change}"
    uids = [row[0] for row in connection.execute(found, values)]
    segments: set[int] = set()
    for uid in uids:
        segments.update(ledger.segments_of(connection, uid))
        kv_changes.erase(connection, key, uid)
    if not uids:
        kv_changes.erase(connection, key, "")
    for statement in (_FORGET_SOURCE, "DELETE FROM agents WHERE uid = ?"):
        connection.executemany(statement, [(uid,) for uid in uids])
    ledger.drop_unused(connection, sorted(segments, reverse=True))
    return len(uids)


def count(connection: Connection) -> tuple[int, set[str]]:
    (agents,) = connection.execute("SELECT count(*) FROM agents").fetchone()
    return int(agents), object_references.remote_uids(connection)


_FORGET_SOURCE = "UPDATE agents SET forked_uid = NULL, forked_version = NULL WHERE forked_uid = ?"

# The page, then its objects.
_PAGE = (
    "WITH page AS MATERIALIZED (SELECT * FROM agents AS a WHERE {condition} ORDER BY a.agent_id, a.model_id LIMIT ?)"
    " SELECT page.namespace, page.agent_id, page.model_id, page.uid, version, revision, tokens, turns,"
    " text_bytes, EXISTS (SELECT 1 FROM object_refs AS r JOIN objects AS o USING (kind, chain_hash)"
    " WHERE r.uid = page.uid AND r.last_version IS NULL AND o.present = 1),"
    " page.created, updated, pinned, ttl, delete_after, context_policy,"
    " (SELECT s.template_time FROM segments AS s WHERE s.id = page.head_segment),"
    " (SELECT source.agent_id FROM agents AS source WHERE source.uid = page.forked_uid), forked_version FROM page"
    " ORDER BY page.agent_id, page.model_id"
)


def _columns(version: Version, head: Head, conversation: Conversation, now: Moment) -> dict[str, Any]:
    columns = State(version, head, conversation).columns
    return {**columns, "label": conversation.label, "updated": now.wall, "used": now.used}


def _matching(key: AgentKey) -> tuple[str, list[str]]:
    given = {column: value for column, value in key._asdict().items() if value}
    return " AND ".join(f"a.{column} = ?" for column in given), [*given.values()]
