"""The node on which a turn should run. Pure.

Where a turn of the agent runs, else where its state was committed, else by rendezvous hashing (Thaler and Ravishankar,
1998); nodes much busier than the mean are passed over ("Consistent hashing with bounded loads", 2018). Turns without an
agent go to the less busy of two ("The power of two choices", 2001).
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final, NamedTuple

from agentmem.validation import AgentKey

BUSIER: Final = 1.25
SMALL: Final = 1.0
"""Turns beyond that: one is not too many where others have none."""


@dataclass(frozen=True)
class NodeView:
    """`ready`: its lease has not ended. `load` is how many turns run or wait; `models` are fingerprints by name, empty
    before the first load.
    """

    name: str
    address: str = ""
    ready: bool = True
    load: int = 0
    models: Mapping[str, str] = field(default_factory=dict)


class Located(NamedTuple):
    """The nodes that run a turn of an agent, and committed its state."""

    running_on: str = ""
    last_on: str = ""


class Reason(StrEnum):
    CLAIM = "claim"
    LAST = "last"
    RENDEZVOUS = "rendezvous"
    LOAD = "load"
    LOCAL = "local"


class Route(NamedTuple):
    """At least one name, the best first."""

    nodes: list[str]
    reason: Reason


def candidates(key: AgentKey, nodes: Sequence[NodeView], located: Located, own: str) -> Route:
    """Return the ready nodes with the agent's model, or else this node alone.

    They have one fingerprint or none yet: that of the agent's last node, else this node's, else the most frequent.
    """
    able = _able(key.model_id, nodes, (located.running_on, located.last_on, own))
    if not able:
        return Route([own], Reason.LOCAL)
    limit = bound(node.load for node in able)
    ordered = sorted(able, key=lambda node: weight(node.name, key), reverse=True)
    calm = [node.name for node in ordered if node.load <= limit]
    busy = [node.name for node in ordered if node.load > limit]
    first, reason = calm[0], Reason.RENDEZVOUS
    if located.running_on in calm or located.running_on in busy:
        first, reason = located.running_on, Reason.CLAIM
    elif located.last_on in calm:
        first, reason = located.last_on, Reason.LAST
    return Route([first, *(name for name in (*calm, *busy) if name != first)], reason)


def for_anyone(model_id: str, nodes: Sequence[NodeView], own: str, random: Random) -> Route:
    able = _able(model_id, nodes, (own,))
    if not able:
        return Route([own], Reason.LOCAL)
    drawn = random.sample(able, len(able))
    two = sorted(drawn[:2], key=lambda node: node.load)
    return Route([node.name for node in (*two, *drawn[2:])], Reason.LOAD)


def bound(loads: Iterable[int]) -> float:
    """Return the most load of preferred nodes; at least one of `loads` is within it."""
    given = list(loads)
    return BUSIER * sum(given) / len(given) + SMALL


def weight(node: str, key: AgentKey) -> int:
    text = "\0".join((node, *key)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def _able(model_id: str, nodes: Sequence[NodeView], leading: Sequence[str]) -> list[NodeView]:
    """Return the ready nodes with a model (any if it is empty) and the first fingerprint of `leading`."""
    serving = [node for node in nodes if node.ready and (not model_id or model_id in node.models)]
    prints = {node.name: node.models.get(model_id, "") for node in nodes}
    wanted = next((prints[name] for name in leading if prints.get(name)), "")
    if not wanted:
        counted = Counter(prints[node.name] for node in serving if prints[node.name])
        wanted = max(counted, key=lambda each: (counted[each], each), default="")
    return [node for node in serving if prints[node.name] in ("", wanted)] if wanted else serving
