"""A pool of blocks in which rooms are asked for, and the agents at rest in it."""

import asyncio

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from inference_service.pool.admission import Admission, MemoryRequest, Reservation
from inference_service.pool.blocks import Segment
from inference_service.pool.hot import HotAgents, HotState
from inference_service.pool.kv import KVPool, Space, Table

LONG = 600.0
"""Patience that no test exhausts."""


class Memory:
    """A pool of `blocks` blocks, or of so many windows besides, each of two pieces; K and V as arrays take a byte per
    token, and those of all turns `arrays` bytes."""

    def __init__(
        self,
        blocks: int,
        windows: int | None = None,
        arrays: int = 0,
        segments: tuple[Segment | None, Segment | None] = (None, None),
    ) -> None:
        pieces = 0 if windows is None else 2
        self.pool = KVPool(Space(blocks, pieces * (windows or 0)), pieces, segments)
        self.hints = TurnHints()
        self.hot = HotAgents(self.pool, self.hints)
        self.arrays = arrays
        self.admission = Admission(self.pool, self.hot, lambda tokens: tokens, arrays)
        self.evicted: list[int] = []
        self.admission.growth.evicted = self.evicted.append

    def idle_agent(self, name: str, *ids: int, windows: int = 0) -> HotState:
        """An agent at rest whose blocks, all full, hold the tokens `ids`."""
        table = Table(
            BLOCK_TOKENS * len(ids),
            tuple(self.pool.full.allocate(len(ids))),
            1 if windows else 0,
            tuple(self.pool.pieces.allocate(windows)),
        )
        state = HotState(Version("u", 1), Ledger(), self.pool.publish(names(*ids), table))
        self.hot.put(key(name), state)
        return state

    def keep(self, name: str, room: Reservation, tokens: int, *ids: int) -> HotState:
        """Name a turn's blocks and a window of its own at its end, but for blocks that others have."""
        chain = names(*ids)
        known = [self.pool.full.find(each) for each in chain]
        own = room.places[: len(ids)]
        places = tuple(block if there is None else there for block, there in zip(own, known, strict=True))
        pieces = tuple(room.pieces[: self.pool.checkpoint_pieces])
        table = room.claim(self.pool, Table(tokens, places, len(pieces), pieces))
        state = HotState(Version("u", 2), Ledger(), self.pool.publish(chain, table))
        self.hot.put(key(name), state)
        return state

    def check(self, *in_flight: Table) -> None:
        self.pool.check_integrity([*self.hot.tables(), *in_flight])

    def check_budget(self) -> None:
        """Check promises: no more than there is."""
        promised = sum(each.array_bytes for each in self.admission._reservations)
        assert promised == self.admission.promised_bytes <= self.arrays

    @property
    def agents(self) -> str:
        return "".join(each.agent_id for each in self.hot)


def names(*ids: int) -> list[bytes]:
    """Names like chain hashes: each of all tokens so far."""
    return [bytes([end + 1, *ids[: end + 1]]) for end in range(len(ids))]


def key(name: str) -> AgentKey:
    return AgentKey("ns", name, "m")


def blocks(count: int, *ids: int, of: str = "stranger") -> MemoryRequest:
    """A turn that can grow to so many blocks and whose prompt begins with full blocks of `ids`."""
    return MemoryRequest(key(of), names(*ids), BLOCK_TOKENS * count)


def enter(memory: Memory, demand: MemoryRequest, patience: float = LONG) -> "asyncio.Task[Reservation]":
    return asyncio.create_task(memory.admission.reserve(demand, patience))
