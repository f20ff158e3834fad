"""New versions of agents: a number that grows by one, and a revision that no other state ever had."""

import secrets
import uuid

from agentmem.kv.ledger import Version
from agentmem.validation import REVISION_BYTES


def first() -> Version:
    """The version of an agent that is made now."""
    return Version(uuid.uuid4().hex, 1, revision())


def following(version: Version) -> Version:
    """The version behind one; the first of a new agent behind NO_VERSION."""
    return version._replace(number=version.number + 1, revision=revision()) if version.uid else first()


def revision() -> bytes:
    """The revision of a state that is made now."""
    return secrets.token_bytes(REVISION_BYTES)
