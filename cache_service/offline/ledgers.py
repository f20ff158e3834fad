"""The ledgers: whether each segment holds together, continues its parent, and every head counts what its chain has."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain

import numpy as np

from cache_service.connection import Connection
from cache_service.ledger.segments import EMPTY, Head, damaged, erase
from cache_service.ledger.workflow_records import TORN
from cache_service.offline.findings import Finding, Mend, Report
from cache_service.offline.tree import Holder, Segment, Tree


def check(connection: Connection, tree: Tree, report: Report) -> None:
    """Report every segment, agent, snapshot and turn that is not as a commit, a fork, a cut or a deletion leaves it.

    Raises what the database raises.
    """
    for where, problem, agents in chain(_of_rows(connection, tree), _of_heads(connection, tree)):
        report(_finding(where, problem, agents))
    for segment, needed in tree.unheld():
        held = "nothing stands on it" if needed is None else f"only {needed} of its tokens are needed"
        problem = f"{held}, so the rest should have been erased"
        consequence = "what a deleted agent or branch said may still be in the database"
        mend = Mend(ledger=partial(erase, segment=segment.id, tokens=needed))
        report(Finding("unerased", f"segment {segment.id}", problem, consequence, "erase it", mend=mend))


def _of_rows(connection: Connection, tree: Tree) -> Iterator[tuple[str, str, tuple[str, ...] | None]]:
    """Where a row of a segment or of any other table is damaged, how, and whose it is; None: a run's."""
    users = tree.users()
    for segment in tree.segments.values():
        if problem := content_problem(connection, segment) or parent_problem(connection, segment, tree.segments):
            yield f"segment {segment.id}", problem, users.get(segment.id, ())
    for number in damaged(connection):
        yield f"segment {number}", "it is not what was written: its digest differs", users.get(number, ())
    for (row,) in connection.execute(f"SELECT id FROM workflow_records WHERE {TORN}"):
        yield f"table workflow_records, row {row}", "it does not have the payload and the events that it counts", None


def _of_heads(connection: Connection, tree: Tree) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """How agents and snapshots contradict their segments, and each other."""
    versions = {holder.uid: holder.version for holder in tree.holders if holder.snapshot is None}
    for holder in tree.holders:
        problems = [head_problem(connection, holder.head, holder.key.namespace, tree.segments)]
        if holder.snapshot is None:
            problems += turn_problems(connection, holder, tree.segments)
        elif holder.version > versions[holder.uid]:
            problems.append(f"it is of version {holder.version}, but the agent is at {versions[holder.uid]}")
        yield from ((holder.where, problem, (holder.agent,)) for problem in problems if problem)


def content_problem(connection: Connection, segment: Segment) -> str:
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


def parent_problem(connection: Connection, segment: Segment, segments: Mapping[int, Segment]) -> str:
    """How a segment fails to continue its parent's chain; "" if it does."""
    head = Head(segment.parent_id, segment.parent_tokens, segment.parent_bytes, segment.turns - (not segment.is_cut))
    if head.segment is None:
        return "" if head == EMPTY else f"the first of its chain, but stands after {_place(head)}"
    parent = segments.get(head.segment)
    if parent is None or parent.id >= segment.id:
        return f"its parent, segment {head.segment}, is not there"
    if segment.parent_tokens and parent.tokenizer_hash != segment.tokenizer_hash:
        return "its tokens are of another tokenizer than its parent's"
    return head_problem(connection, head, segment.namespace, segments)


def head_problem(connection: Connection, head: Head, namespace: str, segments: Mapping[int, Segment]) -> str:
    """How the counters of a head in a namespace differ from its chain; "" if they do not."""
    last = segments.get(head.segment or 0)
    if last is None:
        return f"segment {head.segment}, which it continues, is not there"
    if last.namespace != namespace:
        return f"segment {head.segment}, which it continues, is another namespace's"
    wanted = cut_place(connection, last, head.tokens)
    if wanted is None:
        return f"it counts {head.tokens} tokens, which is not within segment {last.id}"
    return "" if head == wanted else f"it counts {_place(head)}, but its chain has {_place(wanted)}"


def turn_problems(connection: Connection, agent: Holder, segments: Mapping[int, Segment]) -> Iterator[str]:
    """How the turns that an agent can replay contradict the agent and its segments."""
    (newest,) = connection.execute("SELECT max(version) FROM turns WHERE uid = ?", (agent.uid,)).fetchone()
    if (newest or 0) > agent.version:
        yield f"it is at version {agent.version}, but has turns of version {newest}"
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


def cut_place(connection: Connection, segment: Segment, tokens: int) -> Head | None:
    """The chain up to the `tokens`-th token, in `segment`; None if it isn't there.

    What `segments.cut` and, for the root, `segments.empty` say.
    """
    kept = tokens - segment.parent_tokens
    if kept == segment.tokens:
        return Head(segment.id, tokens, segment.parent_bytes + segment.text_bytes, segment.turns)
    if kept == 0 and segment.parent_id is None:
        return Head(segment.id, 0, 0, 0)
    if not 0 < kept < segment.tokens:
        return None
    (data,) = connection.execute(
        "SELECT substr(offsets, CAST(? AS INTEGER), 4) FROM segments WHERE id = ?", (4 * kept - 3, segment.id)
    ).fetchone()
    text_bytes = segment.parent_bytes + int.from_bytes(data, "little")
    return Head(segment.id, tokens, text_bytes, segment.turns - (not segment.is_cut))


def _finding(where: str, problem: str, agents: tuple[str, ...] | None) -> Finding:
    consequence, what = f"what {', '.join(agents or ()) or 'nobody'} remembers may be wrong from there on", "agent"
    if agents is None:
        consequence, what = "that run of a workflow cannot be resumed or looked at", "run"
    repair = f"delete the {what}, or go on without what is damaged: agentmem store recover copies the rest"
    return Finding("ledger", where, problem, consequence, repair, agents or ())


def _place(head: Head) -> str:
    return f"{head.tokens} tokens, {head.text_bytes} bytes and {head.turns} turns"
