"""New versions: a number that grows, and a revision that no other state ever has."""

import secrets
import uuid

from agentmem.kv.ledger import Version
from agentmem.validation import REVISION_BYTES


def first() -> Version:
    return Version(uuid.uuid4().hex, 1, revision())


def following(version: Version) -> Version:
    """After NO_VERSION the first of a new agent."""
    return version._replace(number=version.number + 1, revision=revision()) if version.uid else first()


def revision() -> bytes:
    return secrets.token_bytes(REVISION_BYTES)
