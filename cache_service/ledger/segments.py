"""The ledger: a tree of immutable segments, walked from a head to its root.

A head is a segment, and how many tokens of its chain count. Nothing that a head names is rewritten, so forks and
snapshots cost a row. What no head names is erased, even the end of a segment.

Positions in a chain, for a segment S with the child C (or the head itself, whose cut is its number of tokens):

    S.parent_tokens              C.parent_tokens = S's cut          S.parent_tokens + S.tokens
    | tokens of S that count     | tokens of S that this chain doesn't have |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from agentmem.kv.ledger import Ledger, TurnPlace, Uint32
from cache_service.connection import Connection, differences, insert
from cache_service.damage import LedgerDamaged

_A_LEDGER = "a ledger"
FRAGMENT = -1
"""Instead of generated tokens, if the turn is not whole."""


class Head(NamedTuple):
    """A ledger; without a segment it is empty."""

    segment: int | None
    tokens: int
    text_bytes: int
    turns: int


EMPTY = Head(None, 0, 0, 0)


class Piece(NamedTuple):
    """A segment in a chain, of which the first `kept` tokens count; `tail` is their end in its text, if not its own."""

    kept: int
    tail: int
    id: int
    namespace: str
    opening_bytes: int
    template_time: str
    parent_id: int | None
    parent_tokens: int
    parent_bytes: int
    tokens: int
    text_bytes: int
    generated_tokens: int
    version: int
    turns: int
    tokenizer_hash: str
    token_ids: Uint32
    text: bytes
    offsets: Uint32

    def end(self) -> Head:
        whole = self.kept == self.tokens
        text_bytes = self.text_bytes if whole else self.tail
        turns = self.turns - (not whole and self.generated_tokens != FRAGMENT)
        return Head(self.id, self.parent_tokens + self.kept, self.parent_bytes + text_bytes, turns)


_DIGESTED: Final = (
    "parent_id",
    "parent_tokens",
    "parent_bytes",
    "tokens",
    "text_bytes",
    "generated_tokens",
    "version",
    "turns",
    "tokenizer_hash",
    "opening_bytes",
    "template_time",
    "token_ids",
    "text",
    "offsets",
)


def digest(segment: Mapping[str, Any]) -> bytes:
    """Return the xxh3_128 of a segment's columns with their lengths, but for its id, which an insert draws, and its
    parent's digest, which a cut changes.
    """
    found = xxhash.xxh3_128()
    for value in map(segment.__getitem__, _DIGESTED):
        data = value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")
        found.update(b"%d:" % len(data))
        found.update(data)
    return found.digest()


def append(
    connection: Connection,
    namespace: str,
    head: Head,
    keep_tokens: int,
    part: Ledger,
    generated_tokens: int,
    version: int,
) -> Head:
    """Append one turn, or a fragment. `opening_bytes` and `template_time` of `part` are the whole ledger's."""
    kept = head if keep_tokens == head.tokens else cut(connection, head, keep_tokens)
    turns = kept.turns + (generated_tokens != FRAGMENT)
    size = len(part), len(part.text)
    row = {
        "namespace": namespace,
        "parent_id": kept.segment,
        "parent_tokens": kept.tokens,
        "parent_bytes": kept.text_bytes,
        "tokens": size[0],
        "text_bytes": size[1],
        "generated_tokens": generated_tokens,
        "version": version,
        "turns": turns,
        "tokenizer_hash": part.tokenizer_hash,
        "opening_bytes": part.opening_bytes,
        "template_time": part.template_time,
        "token_ids": _pack(part.token_ids),
        "text": part.text,
        "offsets": _pack(part.offsets),
    }
    segment = insert(connection, "segments", {**row, "digest": digest(row)}, returning="id")
    return Head(segment, kept.tokens + size[0], kept.text_bytes + size[1], turns)


def cut(connection: Connection, head: Head, tokens: int) -> Head:
    """Return the first tokens as a head. A turn without tokens that ended there stays. Raises LedgerDamaged."""
    kept = [
        piece
        for piece in chain(connection, head, _A_LEDGER)
        if piece.parent_tokens < tokens or (piece.parent_tokens == tokens and not piece.tokens)
    ]
    if not kept:
        return EMPTY
    last, count = kept[-1], tokens - kept[-1].parent_tokens
    return last._replace(kept=count, tail=int(last.offsets[count - 1]) if count else 0).end()


def check(connection: Connection, head: Head) -> None:
    """Raises LedgerDamaged."""
    chain(connection, head, _A_LEDGER)


def read(connection: Connection, head: Head, what: str = _A_LEDGER) -> Ledger:
    """Return the whole ledger. Raises LedgerDamaged for `what`."""
    ids, texts, ends, turns = [_NONE], [], [_NONE], []
    conversations = _conversations(connection, head)
    made_by, opening, time = "", 0, ""
    for piece in chain(connection, head, what):
        segment_ends = piece.offsets[: piece.kept]
        ids.append(piece.token_ids[: piece.kept])
        ends.append(segment_ends + np.uint32(piece.parent_bytes))
        texts.append(piece.text[: segment_ends[-1] if piece.kept else 0])
        if piece.kept == piece.tokens and piece.generated_tokens != FRAGMENT:
            end = piece.parent_tokens + piece.tokens
            conversation = conversations.get(piece.id, (0, b""))
            turns.append(TurnPlace(end, piece.generated_tokens, *conversation, version=piece.version))
        made_by, opening, time = piece.tokenizer_hash, piece.opening_bytes, piece.template_time
        if piece.kept < piece.tokens:
            opening = min(opening, piece.parent_bytes + len(texts[-1]))
    return Ledger(np.concatenate(ids), b"".join(texts), np.concatenate(ends), made_by, tuple(turns), opening, time)


def _conversations(connection: Connection, head: Head) -> dict[int, tuple[int, bytes]]:
    rows = connection.execute(
        f"{_CHAIN} SELECT t.segment, t.messages, t.message_hash FROM chain"
        " CROSS JOIN turns AS t WHERE t.segment = chain.id AND t.messages > 0",
        (head.segment, head.tokens),
    )
    return {segment: (messages, message_hash) for segment, messages, message_hash in rows}


def tokenizer_hash(connection: Connection, head: Head) -> str:
    row = connection.execute("SELECT tokenizer_hash FROM segments WHERE id = ?", (head.segment,)).fetchone()
    return "" if row is None else str(row[0])


def empty(connection: Connection, head: Head) -> Head:
    """Return an empty head at the root: agents and snapshots need a segment."""
    return walk(connection, head, _A_LEDGER)[0]._replace(kept=0, tail=0).end()


def common_tokens(connection: Connection, one: Head, other: Head) -> int:
    """Return the number of tokens from the same commits."""
    first, second = (
        dict(connection.execute(f"{_CHAIN} SELECT id, cut FROM chain", (head.segment, head.tokens)).fetchall())
        for head in (one, other)
    )
    shared = max(first.keys() & second.keys(), default=None)
    return 0 if shared is None else min(first[shared], second[shared])


def segments_of(connection: Connection, uid: str) -> list[int]:
    """Return the segments of an agent's turns, snapshots and head, newest first."""
    rows = connection.execute(
        "WITH RECURSIVE used (id) AS (SELECT segment FROM turns WHERE uid = :uid AND segment IS NOT NULL"
        " UNION SELECT head_segment FROM snapshots WHERE uid = :uid"
        " UNION SELECT head_segment FROM agents WHERE uid = :uid"
        " UNION SELECT s.parent_id FROM used JOIN segments AS s ON s.id = used.id WHERE s.parent_id IS NOT NULL)"
        " SELECT id FROM used ORDER BY id DESC",
        {"uid": uid},
    )
    return [row[0] for row in rows]


def drop_unused(connection: Connection, segments: Iterable[int]) -> None:
    """Erase what no head needs of the chains that end in `segments`, newest first."""
    for last in segments:
        segment: int | None = last
        while segment is not None:
            needed, parent = _needed(connection, segment)
            erase(connection, segment, needed)
            segment = parent if needed is None else None


def _needed(connection: Connection, segment: int) -> tuple[int | None, int | None]:
    """Return how many tokens of a segment are in use (None: no use), and its parent. Who leave the same segment ask one
    after the other.
    """
    if differences(connection).for_change:
        lock = f"SELECT 1 FROM segments WHERE id = ?{differences(connection).for_change}"
        connection.execute(lock, (segment,)).fetchall()
    row = connection.execute(
        "SELECT (SELECT max(tokens) FROM (SELECT parent_tokens AS tokens FROM segments WHERE parent_id = :id"
        " UNION ALL SELECT tokens FROM agents WHERE head_segment = :id"
        " UNION ALL SELECT tokens FROM snapshots WHERE head_segment = :id) AS heads) - parent_tokens, parent_id"
        " FROM segments WHERE id = :id",
        {"id": segment},
    ).fetchone()
    return (None, None) if row is None else row


def erase(connection: Connection, segment: int, tokens: int | None) -> None:
    """Erase a segment from a token on, or (None) all of it."""
    if tokens is None:
        connection.execute("DELETE FROM segments WHERE id = ?", (segment,))
        return
    row = connection.execute(
        f"SELECT digest, {', '.join(_DIGESTED)} FROM segments WHERE id = ? AND tokens > ?", (segment, tokens)
    ).fetchone()
    if row is None:
        return
    found, before = row[0], dict(zip(_DIGESTED, row[1:], strict=True))
    end = int(_unpack(before["offsets"])[tokens - 1]) if tokens else 0
    cut = {
        "tokens": tokens,
        "text_bytes": end,
        "generated_tokens": FRAGMENT,
        "turns": before["turns"] - (before["generated_tokens"] != FRAGMENT),
        "token_ids": before["token_ids"][: 4 * tokens],
        "text": before["text"][:end],
        "offsets": before["offsets"][: 4 * tokens],
    }
    cut["digest"] = digest({**before, **cut}) if digest(before) == found else b""  # damage stays
    assigned = ", ".join(f"{column} = ?" for column in cut)
    connection.execute(f"UPDATE segments SET {assigned} WHERE id = ?", (*cut.values(), segment))
    connection.execute("UPDATE turns SET segment = NULL WHERE segment = ?", (segment,))


def damaged(connection: Connection) -> Iterator[int]:
    """Yield damaged segments. Reads everything."""
    last = 0
    while rows := connection.execute(
        f"SELECT id, digest, {', '.join(_DIGESTED)} FROM segments WHERE id > ? ORDER BY id LIMIT 200", (last,)
    ).fetchall():
        for last, found, *columns in rows:
            if digest(dict(zip(_DIGESTED, columns, strict=True))) != found:
                yield last


def holds(place: Sequence[int], head: Head) -> bool:
    """Return whether a head can lie in its segment, by Piece's columns from parent_tokens on."""
    parent_tokens, parent_bytes, tokens, text_bytes, turns, generated = place
    kept, kept_bytes = head.tokens - parent_tokens, head.text_bytes - parent_bytes
    if kept == tokens:
        return (kept_bytes, head.turns) == (text_bytes, turns)
    return 0 <= kept < tokens and 0 <= kept_bytes <= text_bytes and head.turns == turns - (generated != FRAGMENT)


def walk(connection: Connection, head: Head, what: str) -> list[Piece]:
    """Return a chain without content, oldest first. Raises LedgerDamaged for `what`."""
    rows = connection.execute(f"{_CHAIN} SELECT {_PLACES}, '', '', '' {_JOINED}", head[:2])
    return _following(sorted((_piece(row) for row in rows), key=lambda piece: piece.id), what)


def chain(connection: Connection, head: Head, what: str) -> list[Piece]:
    """Return a ledger's segments, oldest first, every byte verified. Raises LedgerDamaged for `what`."""
    pieces = []
    for found, *row in connection.execute(
        f"{_CHAIN} SELECT s.digest, {_PLACES}, s.token_ids, s.text, s.offsets {_JOINED}", head[:2]
    ):
        piece = _piece(row)
        if digest(piece._asdict()) != found:
            raise LedgerDamaged(what)
        pieces.append(piece._replace(token_ids=_unpack(row[-3]), offsets=_unpack(row[-1])))
    pieces = _following(sorted(pieces, key=lambda piece: piece.id), what)
    if (pieces[-1].end() if pieces else EMPTY) != head:
        raise LedgerDamaged(what)
    return pieces


def _following(pieces: list[Piece], what: str) -> list[Piece]:
    """Raises LedgerDamaged unless each follows the one before."""
    place = EMPTY
    for piece in pieces:
        turns = piece.turns - (piece.generated_tokens != FRAGMENT)
        stands_on = Head(piece.parent_id, piece.parent_tokens, piece.parent_bytes, turns)
        if stands_on != place or not 0 <= piece.kept <= piece.tokens:
            raise LedgerDamaged(what)
        place = piece.end()
    return pieces


def _piece(row: Sequence[Any]) -> Piece:
    kept, tail, *columns = row
    return Piece(kept, int.from_bytes(tail or b"", "little"), *columns)


_CHAIN = (
    "WITH RECURSIVE chain (id, cut) AS (SELECT CAST(? AS BIGINT), CAST(? AS BIGINT)"
    " UNION ALL SELECT s.parent_id, s.parent_tokens FROM chain"
    " JOIN segments AS s ON s.id = chain.id WHERE s.parent_id < s.id)"  # or damage could make a circle
)
_KEPT = "(chain.cut - s.parent_tokens)"
_PLACES = (
    f"{_KEPT}, CASE WHEN {_KEPT} > 0 AND {_KEPT} < s.tokens"
    f" THEN substr(s.offsets, CAST(4 * {_KEPT} - 3 AS INTEGER), 4) END, "
) + ", ".join(f"s.{column}" for column in Piece._fields[2:-3])
_JOINED = "FROM chain CROSS JOIN segments AS s WHERE s.id = chain.id"
_NONE = np.empty(0, dtype=np.uint32)


def _pack(numbers: Uint32) -> bytes:
    return numbers.astype("<u4", copy=False).tobytes()


def _unpack(data: bytes) -> Uint32:
    return np.frombuffer(data, dtype="<u4").astype(np.uint32, copy=False)
