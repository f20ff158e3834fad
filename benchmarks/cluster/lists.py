"""Ledgers as lists: each turn of a scripted worker is one token, whose text is its request_id and the end of a line."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from agentmem.kv.ledger import Ledger, TurnPlace

TOKENIZER: Final = "scripted"
_TOKEN: Final = 1


def ledger_of(request_ids: Iterable[str]) -> Ledger:
    """Return the ledger of these turns, or the part that they add."""
    lines = [f"{request_id}\n".encode() for request_id in request_ids]
    ends = np.cumsum([len(line) for line in lines], dtype=np.uint32)
    turns = tuple(TurnPlace(number, 1) for number in range(1, len(lines) + 1))
    return Ledger(np.full(len(lines), _TOKEN, np.uint32), b"".join(lines), ends, TOKENIZER, turns)


def listed(ledger: Ledger) -> tuple[str, ...]:
    return tuple(ledger.text.decode().splitlines())


def is_element(request_id: str) -> bool:
    return request_id.splitlines() == [request_id]
