"""Answers of a stack against a recomputation of the whole ledger in one pass."""

from __future__ import annotations

import numpy as np

from agentmem.v1 import types_pb2
from tests.oracle import Oracle
from tests.system.client import Turn
from tests.system.stack import Stack

TOLERANCE = 1e-3
ARGUMENTS = {"max_tokens": 8, "top_logprobs": 0, "sampling": types_pb2.Sampling(ignore_eos=True)}
"""For turns that are checked."""
LONG = "The colour of the boat is green. " * 45


async def difference(stack: Stack, oracle: Oracle, turn: Turn, agent: str, model: str = "") -> float:
    """Return the largest between the last answer's log-probabilities and those that are recomputed."""
    ledger = list((await stack.ledger(agent, model)).token_ids)
    assert ledger[-len(turn.token_ids) :] == turn.token_ids
    wanted = oracle.logprobs_of(ledger, len(ledger) - len(turn.token_ids))
    return float(np.abs(wanted - np.array(turn.logprobs)).max())


async def check(stack: Stack, oracle: Oracle, turn: Turn, agent: str = "a") -> list[int]:
    """Return the ledger's tokens; the turn's log-probabilities must be those of a recomputation."""
    assert await difference(stack, oracle, turn, agent) < TOLERANCE
    return list((await stack.ledger(agent)).token_ids)
