"""The ledgers: whether each segment holds together, continues its parent, and every head counts what its chain has."""

import sqlite3
from collections.abc import Iterator

import numpy as np

from cache_service import checksums
from cache_service.ledger.workflow_records import TORN
from cache_service.offline.findings import Finding, Mend, Report
from cache_service.offline.tree import Holder, Segment, Tree


def check(connection: sqlite3.Connection, report: Report) -> None:
    """Report every segment, agent, snapshot and turn that is not as a commit, a fork, a cut or a deletion leaves it.

    Raises sqlite3.DatabaseError.
    """
    tree = Tree(connection)
    users = tree.users()
    for segment in tree.segments.values():
        problem = content_problem(connection, segment) or parent_problem(connection, segment, tree.segments)
        if problem:
            report(_finding(f"segment {segment.id}", problem, users.get(segment.id, ())))
    for table, row in checksums.damaged(connection):
        where, problem = f"table {table}, row {row}", "it is not what was written: its checksum differs"
        if table.startswith("workflow"):
            report(_finding_of_run(where, problem))
            continue
        agents = users.get(row, ()) if table == "segments" else _owner(connection, table, row)
        report(_finding(where, problem, agents))
    for row in _torn_runs(connection):
        problem = "it does not have the payload and the events that it counts"
        report(_finding_of_run(f"table workflow_records, row {row}", problem))
    versions: dict[str, int] = {}
    for holder in tree.holders:
        if problem := head_problem(connection, holder, tree.segments):
            report(_finding(holder.where, problem, (holder.agent,)))
        if holder.snapshot is None:
            versions[holder.uid] = holder.version
            for problem in turn_problems(connection, holder, tree.segments):
                report(_finding(holder.where, problem, (holder.agent,)))
        elif holder.version > versions[holder.uid]:
            problem = f"it is of version {holder.version}, but the agent is at {versions[holder.uid]}"
            report(_finding(holder.where, problem, (holder.agent,)))
    _check_unheld(tree, report)


def _torn_runs(connection: sqlite3.Connection) -> list[int]:
    """Row ids of records of runs that lack parts."""
    return [row[0] for row in connection.execute(f"SELECT id FROM workflow_records WHERE {TORN}")]


def _owner(connection: sqlite3.Connection, table: str, row: int) -> tuple[str, ...]:
    """The agent that a row of agents, snapshots or turns is of."""
    found = connection.execute(
        f"SELECT namespace, agent_id, model_id FROM agents WHERE uid = (SELECT uid FROM {table} WHERE rowid = ?)",
        (row,),
    ).fetchone()
    return () if found is None else ("/".join(map(str, found)),)


def content_problem(connection: sqlite3.Connection, segment: Segment) -> str:
    """What is wrong with a segment's own content; "" if nothing. Reads it."""
    token_ids, text, offsets = connection.execute(
        "SELECT length(token_ids), length(text), offsets FROM segments WHERE id = ?", (segment.id,)
    ).fetchone()
    if token_ids != 4 * segment.tokens or len(offsets) != 4 * segment.tokens:
        return f"{segment.tokens} tokens, but {token_ids} bytes of token ids and {len(offsets)} of offsets"
    if text != segment.text_bytes:
        return f"{text} bytes of text instead of {segment.text_bytes}"
    ends = np.frombuffer(offsets, dtype="<u4")
    if (ends[1:] < ends[:-1]).any():
        return "the tokens' offsets decrease"
    if (int(ends[-1]) if len(ends) else 0) != segment.text_bytes:
        return "the tokens' offsets do not end where the text ends"
    if not segment.is_cut and not 0 <= segment.generated_tokens <= segment.tokens:
        return f"{segment.generated_tokens} of its {segment.tokens} tokens were generated"
    return ""


def parent_problem(connection: sqlite3.Connection, segment: Segment, segments: dict[int, Segment]) -> str:
    """How a segment fails to continue its parent's chain; "" if it does."""
    turns = segment.turns - (not segment.is_cut)
    if segment.parent is None:
        stands_at = (segment.parent_tokens, segment.parent_bytes, turns)
        return "" if stands_at == (0, 0, 0) else f"the first of its chain, but stands after {_place(*stands_at)}"
    parent = segments.get(segment.parent)
    if parent is None or parent.id >= segment.id:
        return f"its parent, segment {segment.parent}, is not there"
    if parent.namespace != segment.namespace:
        return "its parent is another namespace's"
    if segment.parent_tokens and parent.tokenizer_hash != segment.tokenizer_hash:
        return "its tokens are of another tokenizer than its parent's"
    return _cut_problem(connection, parent, segment.parent_tokens, segment.parent_bytes, turns)


def head_problem(connection: sqlite3.Connection, holder: Holder, segments: dict[int, Segment]) -> str:
    """How an agent's or a snapshot's counters differ from its chain; "" if they do not."""
    head = segments.get(holder.head)
    if head is None:
        return f"its head, segment {holder.head}, is not there"
    if head.namespace != holder.key.namespace:
        return f"its head, segment {holder.head}, is another namespace's"
    return _cut_problem(connection, head, holder.tokens, holder.text_bytes, holder.turns)


def turn_problems(connection: sqlite3.Connection, agent: Holder, segments: dict[int, Segment]) -> Iterator[str]:
    """How the turns that an agent can replay, and what is published of it, contradict the agent and its segments."""
    newest, published = connection.execute(
        "SELECT (SELECT max(version) FROM turns WHERE uid = :uid), published_version FROM agents WHERE uid = :uid",
        {"uid": agent.uid},
    ).fetchone()
    if max(newest or 0, published) > agent.version:
        yield f"it is at version {agent.version}, but has turns or KV of version {max(newest or 0, published)}"
    rows = connection.execute("SELECT version, segment FROM turns WHERE uid = ? AND segment IS NOT NULL", (agent.uid,))
    for version, number in rows:
        segment = segments.get(number)
        if segment is None or segment.is_cut or segment.version != version:
            yield f"its turn of version {version} is not in segment {number}"
    strange = connection.execute(
        "SELECT count(*) FROM turns WHERE uid = ? AND namespace != ?", (agent.uid, agent.key.namespace)
    ).fetchone()[0]
    if strange:
        yield f"{strange} of its turns are another namespace's"


def cut_place(connection: sqlite3.Connection, segment: Segment, tokens: int) -> tuple[int, int, int] | None:
    """Tokens, bytes of text and turns of the chain up to the `tokens`-th token, in `segment`; None if it isn't there.

    What `ledger.cut` and, for the root, `ledger.empty` say.
    """
    kept = tokens - segment.parent_tokens
    if kept == segment.tokens:
        return tokens, segment.parent_bytes + segment.text_bytes, segment.turns
    if kept == 0 and segment.parent is None:
        return 0, 0, 0
    if not 0 < kept < segment.tokens:
        return None
    (data,) = connection.execute(
        "SELECT substr(offsets, ?, 4) FROM segments WHERE id = ?", (4 * kept - 3, segment.id)
    ).fetchone()
    return tokens, segment.parent_bytes + int.from_bytes(data, "little"), segment.turns - (not segment.is_cut)


def _cut_problem(connection: sqlite3.Connection, segment: Segment, tokens: int, text_bytes: int, turns: int) -> str:
    """How a place in a chain differs from what its segments say, `segment` being the last one kept."""
    wanted = cut_place(connection, segment, tokens)
    if wanted is None:
        return f"it counts {tokens} tokens, which is not within segment {segment.id}"
    if (tokens, text_bytes, turns) != wanted:
        return f"it counts {_place(tokens, text_bytes, turns)}, but its chain has {_place(*wanted)}"
    return ""


def _check_unheld(tree: Tree, report: Report) -> None:
    for segment, needed in tree.unheld():
        what = (
            "no agent, snapshot or turn stands on it" if needed is None else f"only {needed} of its tokens are needed"
        )
        report(
            Finding(
                "unerased",
                f"segment {segment.id}",
                f"{what}, so the rest should have been erased",
                "what a deleted agent or branch said may still be in the database",
                "erase it",
                mend=Mend("erase", segment=segment.id, tokens=needed),
            )
        )


def _finding(where: str, problem: str, agents: tuple[str, ...]) -> Finding:
    return Finding(
        "ledger",
        where,
        problem,
        f"what {', '.join(agents) or 'nobody'} remembers may be wrong from there on",
        "delete the agent, or go on without what is damaged: agentmem store recover copies the rest",
        agents,
    )


def _finding_of_run(where: str, problem: str) -> Finding:
    return Finding(
        "ledger",
        where,
        problem,
        "that run of a workflow cannot be resumed or looked at",
        "delete the run, or go on without it: agentmem store recover copies the rest",
    )


def _place(tokens: int, text_bytes: int, turns: int) -> str:
    return f"{tokens} tokens, {text_bytes} bytes and {turns} turns"
