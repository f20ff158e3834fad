"""Names below the prefix: keys of objects, and the manifest that says whose they are.

    manifest.json                                   whose the prefix is
    blocks/ab/<chain hash>-<digest>.safetensors     copies of blocks, by the first byte of their chain hash
    windows/ab/<chain hash>-<digest>.safetensors    copies of windows

A namespace is part of the chain hash, so two namespaces never share an object, and keys don't say whose they are.

The manifest of a prefix: whose objects it holds, in one small object that is only ever written conditionally.

Objects are cached KV of one data directory: its rows say which may be read, and whatever no row knows is deleted. Two
stores on one prefix would therefore delete each other's objects and, worse, an agent that was erased in one could live
on in the other. So a prefix has one owner, the random id in the data directory's database, and a store that finds
another id there refuses to start. The first claim is a PUT with If-None-Match: of two stores that start at once on an
empty prefix, one loses and sees it.

An owner id alone does not distinguish a data directory from a copy of it. So each start replaces the manifest's
`session` with a new random one, by a PUT with If-Match, and keeps in its database which one it left there. A store that
starts from an old copy doesn't know the present session, and refuses; a store that runs while a copy takes over notices
before it deletes.

There is one manifest per prefix and none per namespace or block: which blocks make up an agent is in the ledger's
database, which is the truth, and a second list of it could only disagree.
"""

import json
import re
from dataclasses import dataclass
from typing import Self

from cache_service.files.directory import FOLDERS, SUFFIX
from cache_service.tiers.remote.contract import Claim, NotOwner, ObjectName

FORMAT = 1
MANIFEST = "manifest.json"

_KEY = re.compile(
    rf"(?P<folder>[a-z]+)/(?P<first>[0-9a-f]{{2}})/"
    rf"(?P<chain>(?P=first)[0-9a-f]{{62}})-(?P<digest>[0-9a-f]{{32}}){re.escape(SUFFIX)}"
)
_KINDS = {folder: kind for kind, folder in FOLDERS.items()}


def object_key(name: ObjectName) -> str:
    """An object's key."""
    chain_hash = name.chain_hash.hex()
    return f"{FOLDERS[name.kind]}/{chain_hash[:2]}/{chain_hash}-{name.digest.hex()}{SUFFIX}"


def object_name(key: str) -> ObjectName | None:
    """The object that has this key; None if no object of ours has."""
    match = _KEY.fullmatch(key)
    if match is None or match["folder"] not in _KINDS:
        return None
    return ObjectName(_KINDS[match["folder"]], bytes.fromhex(match["chain"]), bytes.fromhex(match["digest"]))


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
