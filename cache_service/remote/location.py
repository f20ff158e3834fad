"""Where the remote tier is, as settings say it, and the tier that is there."""

import re
from dataclasses import dataclass
from typing import NamedTuple, Self

from cache_service.remote.absent import NoRemoteTier
from cache_service.remote.contract import RemoteTier

NONE = "none"
# What S3 allows in a bucket's name, and of a prefix what needs no escaping anywhere.
_S3 = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?P<prefix>(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)/?")
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+/?")


class Location(NamedTuple):
    """A bucket, and a prefix in it without slashes at its ends; the prefix may be empty."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The location in `none` (None) or `s3://BUCKET/PREFIX`. Raises ValueError."""
        if text == NONE:
            return None
        match = _S3.fullmatch(text)
        if match is None:
            raise ValueError(f"must be {NONE} or s3://BUCKET/PREFIX, of letters, digits, dots, dashes and underscores")
        return cls(match["bucket"], match["prefix"].strip("/"))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True)
class RemoteSettings:
    """Which remote tier there is. Credentials are no part of it: see `credentials`.

    `endpoint` "" is AWS's own, `region` "" what AWS's environment or configuration says. `timeout` is in seconds, of
    one request. `abandon`: objects at another place than this are given up.
    """

    location: Location | None = None
    endpoint: str = ""
    region: str = ""
    timeout: float = 30.0
    abandon: bool = False


def check_endpoint(text: str) -> str:
    """`text` if it is empty or an address without user, path and query. Raises ValueError."""
    if text and not _ENDPOINT.fullmatch(text):
        raise ValueError("must be http://HOST:PORT or https://HOST:PORT; credentials come from AWS's environment only")
    return text.rstrip("/")


def connect(settings: RemoteSettings) -> RemoteTier:
    """The tier that `settings` name; nothing is sent yet. Raises RemoteRefused where they make no sense together."""
    if settings.location is None:
        return NoRemoteTier()
    from cache_service.remote.s3 import S3Tier  # a store without a remote tier doesn't load the client

    return S3Tier(settings.location, settings.endpoint, settings.region, settings.timeout)
