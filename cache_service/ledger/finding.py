"""Finding an agent by a conversation, or by a turn."""

from collections.abc import Sequence
from typing import NamedTuple

from agentmem.kv.ledger import Version
from agentmem.validation import AgentKey
from cache_service.connection import Connection, among, pieces
from cache_service.ledger import agents
from cache_service.ledger.agents import Agent


class Found(NamedTuple):
    agent: Agent
    messages: int
    version: Version


def find(
    connection: Connection, namespace: str, model_id: str, message_hashes: Sequence[bytes], label: str
) -> Found | None:
    """Return the longest stored beginning of this hash chain; of equal ones present states first, then the last used
    agent.
    """
    for some in pieces(message_hashes[::-1]):
        if (found := _longest(connection, namespace, model_id, some, label)) is not None:
            return found
    return None


def of_turn(connection: Connection, namespace: str, model_id: str, request_id: str) -> Found | None:
    row = connection.execute(
        "SELECT a.agent_id, a.uid, t.version, t.revision FROM turns AS t JOIN agents AS a USING (uid)"
        " WHERE t.namespace = ? AND t.request_id = ? AND t.request_id != '' AND a.model_id = ?"
        " ORDER BY t.created DESC, coalesce(t.segment, 0) DESC LIMIT 1",
        (namespace, request_id, model_id),
    ).fetchone()
    if row is None:
        return None
    agent_id, *version = row
    return Found(agents.described(connection, AgentKey(namespace, agent_id, model_id)), 0, Version(*version))


def _longest(
    connection: Connection, namespace: str, model_id: str, message_hashes: Sequence[bytes], label: str
) -> Found | None:
    row = connection.execute(
        "SELECT agent_id, uid, version, revision, messages FROM ("
        " SELECT a.agent_id, a.uid, a.version, a.revision, a.messages, a.used, 1 AS present FROM agents AS a"
        f" WHERE a.namespace = ? AND a.model_id = ? AND {among('a.message_hash', message_hashes)}"
        " AND (a.label = ? OR ? = '')"
        " UNION ALL"
        " SELECT a.agent_id, a.uid, t.version, t.revision, t.messages, a.used, 0"
        " FROM turns AS t JOIN agents AS a USING (uid)"
        f" WHERE {among('t.message_hash', message_hashes)} AND t.messages > 0 AND t.segment IS NOT NULL"
        " AND a.namespace = ? AND a.model_id = ? AND (a.label = ? OR ? = '')"
        ") AS found WHERE messages > 0 ORDER BY messages DESC, present DESC, used DESC LIMIT 1",
        (namespace, model_id, *message_hashes, label, label, *message_hashes, namespace, model_id, label, label),
    ).fetchone()
    if row is None:
        return None
    agent_id, *version, messages = row
    agent = agents.described(connection, AgentKey(namespace, agent_id, model_id))
    return Found(agent, messages, Version(*version))
