"""An agent that is there at once, with all of its turns: an import. Functions of a connection."""

import sqlite3
import uuid

from agentmem.errors import AlreadyExists
from agentmem.keys import AgentKey
from cache_service import agents, ledger
from cache_service.agents import Conversation, Version
from cache_service.clock import Moment
from cache_service.ledger import EMPTY, FRAGMENT, Head, Ledger, Part


def create(
    connection: sqlite3.Connection,
    key: AgentKey,
    content: Ledger,
    now: Moment,
    context_policy: int = agents.DEFAULT_CONTEXT_POLICY,
) -> Version:
    """A new agent with this ledger: a segment and a version for each of its turns, and for tokens behind the last one.

    Raises AlreadyExists.
    """
    if agents.find(connection, key) is not None:
        raise AlreadyExists(f"agent {key.agent_id!r} exists; delete it, or choose another id")
    uid, head = uuid.uuid4().hex, EMPTY
    turns = []
    for turn in content.turns:
        part = _part(content, head, turn.end_token, turn.generated_tokens)
        head = ledger.append(connection, key.namespace, head, head.tokens, part, turn.version)
        turns.append((uid, turn.version, head.segment, now.wall, key.namespace))
    version = Version(uid, len(turns))
    if head.tokens < len(content.token_ids) or head.segment is None:
        version = Version(uid, len(turns) + 1)
        part = _part(content, head, len(content.token_ids), FRAGMENT)
        head = ledger.append(connection, key.namespace, head, head.tokens, part, version.version)
    nothing = Conversation("", 0, b"")
    agents.create(connection, key, uid, head, nothing, now, version.version, context_policy)
    connection.executemany(
        "INSERT INTO turns (uid, version, segment, request_id, request_digest, messages, message_hash, created, record,"
        " namespace) VALUES (?, ?, ?, '', x'', 0, x'', ?, x'', ?)",
        turns,
    )
    return version


def _part(content: Ledger, head: Head, end_token: int, generated_tokens: int) -> Part:
    """What follows `head` up to a token."""
    end = int(content.offsets[end_token - 1]) if end_token else 0
    return Part(
        token_ids=content.token_ids[head.tokens : end_token],
        text=content.text[head.text_bytes : end],
        offsets=content.offsets[head.tokens : end_token] - content.offsets.dtype.type(head.text_bytes),
        tokenizer_hash=content.tokenizer_hash,
        generated_tokens=generated_tokens,
        opening_bytes=content.opening_bytes,
        template_time=content.template_time,
    )
