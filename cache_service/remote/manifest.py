"""The manifest of a prefix: whose objects it holds, in one small object that is only ever written conditionally.

Objects are cached KV of one data directory: its rows say which may be read, and whatever no row knows is deleted. Two
stores on one prefix would therefore delete each other's objects and, worse, an agent that was erased in one could live
on in the other. So a prefix has one owner, the random id in the data directory's database, and a store that finds
another id there refuses to start. The first claim is a PUT with If-None-Match: of two stores that start at once on an
empty prefix, one loses and sees it.

An owner id alone does not tell a data directory from a copy of it. So each start replaces the manifest's `session` with
a new random one, by a PUT with If-Match, and keeps in its database which one it left there. Whoever starts from an old
copy doesn't know the present session, and refuses; whoever runs while a copy takes over notices before it deletes.

There is one manifest per prefix and none per namespace or block: which blocks make up an agent is in the ledger's
database, which is the truth, and a second list of it could only disagree.
"""

import json
from dataclasses import dataclass
from typing import Self

from cache_service.remote.contract import Claim, NotOwner

FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """Whose a prefix is: which data directory's, and which of its starts came last."""

    owner: str
    session: str

    def to_bytes(self) -> bytes:
        """The object's content."""
        return json.dumps({"format": FORMAT, "owner": self.owner, "session": self.session}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The manifest that this is the content of. Raises NotOwner if no version of ours that we know wrote it."""
        try:
            content = json.loads(data)
            version, owner, session = content["format"], content["owner"], content["session"]
        except (ValueError, KeyError, TypeError) as error:
            raise NotOwner("its manifest.json is not Agentmem's; choose another prefix") from error
        if version != FORMAT:
            raise NotOwner(f"its objects have format {version}, this program writes {FORMAT}; use a newer agentmem")
        return cls(str(owner), str(session))

    def check(self, claim: Claim) -> None:
        """Raise NotOwner unless `claim` may take over from this."""
        if self.owner != claim.owner:
            raise NotOwner(
                "it belongs to the store of another data directory; choose another prefix, or, if that store is gone"
                " for good, delete manifest.json there, and its objects become this store's to delete"
            )
        if self.session not in claim.known | {claim.session}:
            raise NotOwner(
                "another copy of this data directory has used it since; if this is the copy to go on with, delete"
                " manifest.json there, and give the other one another prefix"
            )
