"""The remote tier: copies of files of KV in an object store, for what the disk has no room for.

`contract` says what a remote tier does and when it is called, and is all that the rest of the store knows; `absent` is
the default, which keeps nothing; `s3` keeps objects in S3 or what speaks like it, under names from `keys`, and under a
`manifest` that says whose they are; `credentials` finds who we are in AWS's own files; `location` reads settings.
"""

from cache_service.remote.absent import NoRemoteTier
from cache_service.remote.contract import (
    Claim,
    NotOwner,
    ObjectDamaged,
    ObjectMissing,
    ObjectName,
    RemoteError,
    RemoteRefused,
    RemoteTier,
    RemoteUnavailable,
)
from cache_service.remote.location import Location, RemoteSettings, connect

__all__ = [
    "Claim",
    "Location",
    "NoRemoteTier",
    "NotOwner",
    "ObjectDamaged",
    "ObjectMissing",
    "ObjectName",
    "RemoteError",
    "RemoteRefused",
    "RemoteSettings",
    "RemoteTier",
    "RemoteUnavailable",
    "connect",
]
