"""Ids of responses: each is the request_id of its turn, so that a later request finds the turn by it.

An id ends with hashes of the instructions, the tools and the reasoning effort that the turn ran under. The ledger
begins with them, and a turn that appends to it cannot give it another beginning; so a request that comes with others
has to be told.
"""

import hashlib
import re
from typing import NamedTuple, Self

_FORM = re.compile(r"resp_[0-9a-f]{32}(?P<instructions>[0-9a-f]{8})(?P<tools>[0-9a-f]{8})(?P<reasoning>[0-9a-f]{8})?")
_NUMBER_BYTES = 16
_HASH_BYTES = 4


class Beginning(NamedTuple):
    """What a ledger begins with, as hashes of eight hexadecimal digits. An effort that is not given has none."""

    instructions: str
    tools: str
    reasoning: str = ""

    @classmethod
    def of(cls, instructions: str, tools: str, effort: str = "") -> Self:
        """`tools` is canonical JSON; each is empty where there is none."""
        reasoning = _hash(effort, b"reasoning") if effort else ""
        return cls(_hash(instructions, b"instructions"), _hash(tools, b"tools"), reasoning)


def response_id(number: str, beginning: Beginning) -> str:
    """The id of a response; `number` has 32 hexadecimal digits."""
    return f"resp_{number}{''.join(beginning)}"


def beginning_of(identifier: str) -> Beginning | None:
    """What the turn of that response began with; None where no response has such an id."""
    form = _FORM.fullmatch(identifier)
    return Beginning(**form.groupdict("")) if form else None


def number_of_key(key: str) -> str:
    """32 hexadecimal digits that stand for an Idempotency-Key, so that each attempt makes the same id."""
    return hashlib.blake2b(key.encode(), digest_size=_NUMBER_BYTES, person=b"idempotency-key").hexdigest()


def _hash(text: str, person: bytes) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES, person=person).hexdigest()
