"""No remote tier: the default. KV that is dropped from the disk is computed again from the ledger."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from cache_service.remote.contract import Claim, ObjectMissing, ObjectName, RemoteRefused, RemoteTier


class NoRemoteTier(RemoteTier):
    """Keeps nothing, so it has nothing, and nothing to delete."""

    location = ""

    def claim(self, claim: Claim) -> None:
        """Nothing is there to be taken."""

    def holds(self, claim: Claim) -> bool:  # noqa: ARG002
        """Nobody else can have it."""
        return True

    def put(self, name: ObjectName, path: Path) -> None:  # noqa: ARG002
        """Raises RemoteRefused: what is put has to be there afterwards."""
        raise RemoteRefused("no object store is configured; start the store with --remote s3://BUCKET/PREFIX")

    def get(self, name: ObjectName, size_bytes: int, target: Path) -> None:  # noqa: ARG002
        """Raises ObjectMissing."""
        raise ObjectMissing("no object store is configured")

    def delete(self, names: Sequence[ObjectName]) -> None:
        """Nothing is there."""

    def names(self) -> Iterator[ObjectName]:
        """None."""
        return iter(())
