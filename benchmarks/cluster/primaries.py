"""The commits of a run, through one primary of PostgreSQL or several, among which namespaces are divided.

A primary is one queue that ends so many commits a second as were measured. An agent's namespace is drawn by its number;
namespaces are of unequal size, by Zipf's law.
"""

import heapq
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

NAMESPACES = 10_000
SKEW = 0.8
"""A namespace's share is as its rank to minus this."""
USED = 0.8
"""Of what a primary can do, for a number of primaries to be enough."""
PARTS = (0.5, 0.8, 0.9, 0.95, 0.99, 1.05)
"""Of what one primary can do: how much it is asked for."""


def waits(times: Array, seconds: float) -> Array:
    """Return how long each commit waits for those before it, if each takes so long; `times` ascend (Lindley, 1952)."""
    before = np.arange(len(times)) * seconds
    found: Array = np.maximum.accumulate(times - before) + before - times
    return found


def namespaces(agents: Array, count: int = NAMESPACES, skew: float = SKEW) -> Array:
    """Return the namespace of each agent: the same each time, 0 the largest."""
    shares = np.arange(1, count + 1, dtype=float) ** -skew
    found: Array = np.searchsorted(np.cumsum(shares)[:-1] / shares.sum(), uniform(agents, 1), side="right")
    return found


def uniform(agents: Array, salt: int) -> Array:
    """Return a number of [0, 1) for each agent: the same each time for one salt."""
    mixed = (agents.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Array = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) / float(1 << 53)
    return found


def divided(loads: Array, shards: int) -> Array:
    """Return the shard of each namespace: the largest first, each to the shard that has least."""
    found = np.zeros(len(loads), dtype=int)
    least = [(0.0, shard) for shard in range(shards)]
    for namespace in np.argsort(-loads, kind="stable"):
        load, shard = least[0]
        found[namespace] = shard
        heapq.heapreplace(least, (load + float(loads[namespace]), shard))
    return found


def one(times: Array, agents: Array, capacity: float, length: float) -> list[dict[str, float]]:
    """What commits wait at one primary, where it is asked for more and more: by those of a part of the agents."""
    rate, found = len(times) / length, []
    for part in PARTS:
        if part * capacity <= rate:
            kept = times[uniform(agents, 2) < part * capacity / rate]
            waited = waits(kept, 1 / capacity)
            found.append(
                {
                    "part": part,
                    "turns": len(kept) / length,
                    "mean": float(waited.mean()),
                    "p99": float(np.quantile(waited, 0.99)),
                    "last": float(waited[-1]),
                }
            )
    return found


def several(times: Array, agents: Array, capacity: float, length: float) -> dict[str, float]:
    """How many primaries are enough for all, so that none is used more than `USED`; at most as many as namespaces.

    `largest` is the turns/s of the largest namespace, which no division by namespaces makes smaller.
    """
    spaces = namespaces(agents)
    loads = np.bincount(spaces, minlength=NAMESPACES) / length
    shards = max(1, math.ceil(loads.sum() / capacity / USED))
    found = {"turns": float(loads.sum()), "largest": float(loads.max()), "least": shards}
    while shards < NAMESPACES:
        where = divided(loads, shards)
        busiest = float(np.bincount(where, weights=loads).max() / capacity)
        if busiest <= USED or loads.max() / capacity > USED:
            break
        shards += 1
    waited = np.concatenate([waits(times[where[spaces] == shard], 1 / capacity) for shard in range(shards)])
    return {**found, "shards": shards, "busiest": busiest, "p99": float(np.quantile(waited, 0.99))}


def figures(times: Array, agents: Array, capacities: Mapping[str, float], length: float) -> dict[str, Any]:
    """What is written: by what was measured of a primary, one of it and several."""
    return {
        name: {
            "capacity": capacity,
            "one": one(times, agents, capacity, length),
            "several": several(times, agents, capacity, length),
        }
        for name, capacity in capacities.items()
    }
