"""Check of clients' history: can one ledger have shown it? Elle's list-append, for turns.

A turn appends its request_id to its agent's list; times are the client's, on one clock. The check is for strict
serializability of each agent (Kingsbury and Alvaro, Elle, VLDB 2020). Each operation has a place in the final list; an
order is possible exactly if none had ended before another began that has an earlier place. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

_SHOWN: Final = 4


class Outcome(StrEnum):
    OK = "ok"  # it is in the ledger
    FAILED = "failed"  # it is not, and never will be
    UNKNOWN = "unknown"  # nothing: it may be in the ledger, also later


@dataclass(frozen=True)
class Append:
    """A turn with all of its retries; times in seconds. `seen` is the list that it continued, None if not known."""

    agent: str
    request_id: str
    began: float
    ended: float
    outcome: Outcome
    seen: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Read:
    agent: str
    began: float
    ended: float
    found: tuple[str, ...]


Operation = Append | Read


class Kind(StrEnum):
    LOST = "lost"  # an append that was acknowledged is not there
    UNDEAD = "undead"  # an append that failed is there
    DOUBLED = "doubled"  # an append is there more than once
    STRANGE = "strange"  # an element that nobody appended to this agent is there
    FORKED = "forked"  # a read is not a beginning of the final list
    STALE = "stale"  # an operation lacks elements that were there before it began
    FORESEEN = "foreseen"  # a read has what began only after it had ended
    BLIND = "blind"  # a turn continued another list than the one before it


class Violation(NamedTuple):
    kind: Kind
    agent: str
    message: str

    def __str__(self) -> str:
        return f"{self.agent}: {self.kind}: {self.message}"


def violations(history: Iterable[Operation], final: Mapping[str, Sequence[str]]) -> list[Violation]:
    """Return all mistakes by agent. `final` has the lists in the end. Raises ValueError for a request_id of two
    appends.
    """
    appends: dict[str, dict[str, Append]] = defaultdict(dict)
    reads: dict[str, list[Read]] = defaultdict(list)
    home: dict[str, str] = {}
    for operation in history:
        if isinstance(operation, Read):
            reads[operation.agent].append(operation)
            continue
        if operation.request_id in home:
            raise ValueError(f"two appends have the request_id {operation.request_id!r}: a retry is part of the first")
        home[operation.request_id] = operation.agent
        appends[operation.agent][operation.request_id] = operation
    found: list[Violation] = []
    for agent in sorted({*appends, *reads, *final}):
        listed = tuple(final.get(agent, ()))
        own, seen = appends[agent], reads[agent]
        for check in (_members(own, home, listed), _beginnings(own, seen, listed), _order(own, seen, listed)):
            found += (Violation(kind, agent, message) for kind, message in check)
    return found


_Found = Iterator[tuple[Kind, str]]


def _members(appends: Mapping[str, Append], home: Mapping[str, str], final: tuple[str, ...]) -> _Found:
    places: dict[str, list[int]] = defaultdict(list)
    for place, request_id in enumerate(final):
        places[request_id].append(place)
    for request_id, where in places.items():
        if len(where) > 1:
            yield Kind.DOUBLED, f"{request_id} is at {', '.join(map(str, where))}"
        if request_id not in appends:
            other = home.get(request_id)
            whose = "nobody appended it" if other is None else f"it was appended to {other}"
            yield Kind.STRANGE, f"{request_id} is at {where[0]}, but {whose}"
    for request_id, append in appends.items():
        if append.outcome is Outcome.OK and request_id not in places:
            yield Kind.LOST, f"{request_id} was acknowledged at {append.ended:.6f}, and is not in the list"
        if append.outcome is Outcome.FAILED and request_id in places:
            yield Kind.UNDEAD, f"{request_id} had failed at {append.ended:.6f}, and is at {places[request_id][0]}"


def _beginnings(appends: Mapping[str, Append], reads: Iterable[Read], final: tuple[str, ...]) -> _Found:
    for read in reads:
        if read.found != final[: len(read.found)]:
            yield Kind.FORKED, f"what was read until {read.ended:.6f} {_difference(read.found, final)}"
    for place, request_id in enumerate(final):
        append = appends.get(request_id)
        if append is not None and append.seen is not None and append.seen != final[:place]:
            difference = _difference(append.seen, final[:place])
            yield Kind.BLIND, f"{request_id} is at {place}, but what it continued {difference}"


def _difference(found: tuple[str, ...], listed: tuple[str, ...]) -> str:
    at = next((n for n, (one, other) in enumerate(zip(found, listed, strict=False)) if one != other), None)
    at = min(len(found), len(listed)) if at is None else at
    return f"has from {at} on {_shown(found[at:])}, and the list has {_shown(listed[at:])}"


def _shown(listed: tuple[str, ...]) -> str:
    more = f", and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return f"{', '.join(listed[:_SHOWN])}{more}" if listed else "nothing"


class _Placed(NamedTuple):
    """An operation's place: 2n for a read of n appends, 2n + 1 for the append at n."""

    place: int
    began: float
    ended: float
    operation: Operation


def _order(appends: Mapping[str, Append], reads: Iterable[Read], final: tuple[str, ...]) -> _Found:
    beginnings = (read for read in reads if read.found == final[: len(read.found)])
    placed = [_Placed(2 * len(read.found), read.began, read.ended, read) for read in beginnings]
    for place, request_id in enumerate(final):
        if (append := appends.get(request_id)) is not None:
            # An append whose end is not known may be made at any time after it began.
            ended = append.ended if append.outcome is Outcome.OK else inf
            placed.append(_Placed(2 * place + 1, append.began, ended, append))
    placed.sort(key=lambda each: -each.place)
    first: _Placed | None = None  # to end, of those with a later place
    waiting: list[_Placed] = []  # of the same place
    for each in placed:
        if waiting and waiting[0].place != each.place:
            first = min([*waiting, *([first] if first else [])], key=lambda other: other.ended)
            waiting = []
        waiting.append(each)
        if first is not None and first.ended < each.began:
            yield _misplaced(each, first)


def _misplaced(front: _Placed, back: _Placed) -> tuple[Kind, str]:
    times = f"(it ended at {back.ended:.6f}, and the other began at {front.began:.6f})"
    match front.operation, back.operation:
        case Append(request_id=later), Append(request_id=earlier):
            return Kind.STALE, f"{later} began after {earlier} was acknowledged, and stands in front of it {times}"
        case Read(found=found), Append(request_id=earlier):
            return Kind.STALE, f"a read of {len(found)} began after {earlier} was acknowledged, and lacks it {times}"
        case Read(found=found), Read(found=longer):
            return Kind.STALE, f"a read of {len(found)} began after one of {len(longer)} had ended {times}"
        case Append(request_id=later), _:
            return Kind.FORESEEN, f"a read has {later}, which began after it {times}"
    raise AssertionError
