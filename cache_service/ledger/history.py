from typing import NamedTuple

from agentmem.kv.ledger import Version
from agentmem.validation import AgentKey
from cache_service import damage
from cache_service.connection import Connection
from cache_service.ledger import agents, segments
from cache_service.ledger.segments import FRAGMENT, Piece


class Entry(NamedTuple):
    """`id` grows along the ledger. A cut prompt had `prompt_bytes`. `created` is in nanoseconds since 1970, or 0."""

    id: int
    version: int
    first_token: int
    tokens: int
    generated_tokens: int
    cut: bool
    prompt: bytes
    generated: bytes
    prompt_bytes: int
    request_id: str = ""
    created: int = 0
    record: bytes | None = None


def page(connection: Connection, key: AgentKey, after: int | None, limit: int) -> list[Entry]:
    """Return entries, oldest first, after the id `after`. Raises NotFound and LedgerDamaged."""
    head = agents.existing(connection, key).head
    pieces = [piece for piece in segments.chain(connection, head, damage.of_agent(key)) if piece.id > (after or 0)]
    shown = [piece for piece in pieces if piece.kept or not piece.tokens]
    return [_entry(connection, piece) for piece in shown[:limit]]


def text_ends(connection: Connection, key: AgentKey) -> tuple[Version, list[int]]:
    """Return also the tokens' ends in the text, in bytes. Raises NotFound and LedgerDamaged."""
    state = agents.existing(connection, key)
    return state.version, segments.read(connection, state.head, damage.of_agent(key)).offsets.tolist()


def _entry(connection: Connection, piece: Piece) -> Entry:
    fragment = piece.generated_tokens == FRAGMENT
    cut = fragment or piece.kept < piece.tokens
    # generated tokens are at the end
    generated_tokens = 0 if fragment else max(0, piece.generated_tokens - (piece.tokens - piece.kept))
    ends = [0, *piece.offsets[: piece.kept]]
    generated_at, end = int(ends[piece.kept - generated_tokens]), int(ends[piece.kept])
    entry = Entry(
        piece.id,
        piece.version,
        piece.parent_tokens,
        piece.kept,
        generated_tokens,
        cut,
        piece.text[:generated_at],
        piece.text[generated_at:end],
        generated_at if fragment else int([0, *piece.offsets][piece.tokens - piece.generated_tokens]),
    )
    turn = "SELECT request_id, created, record FROM turns WHERE segment = ?"
    row = connection.execute(turn, (piece.id,)).fetchone() or ("", 0, None)
    return entry._replace(request_id=row[0], created=row[1], record=row[2])
