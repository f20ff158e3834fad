"""The setting of the object store: s3://BUCKET/PREFIX."""

import re
from typing import Annotated, Final, NamedTuple, Self

from pydantic import AfterValidator

NONE: Final = "none"
_S3 = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?P<prefix>(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)/?")


class Location(NamedTuple):
    """A prefix is without slashes at its ends."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse `none` (None) or `s3://BUCKET/PREFIX`. Raises ValueError."""
        if text == NONE:
            return None
        match = _S3.fullmatch(text)
        if match is None:
            raise ValueError(f"must be {NONE} or s3://BUCKET/PREFIX, of letters, digits, dots, dashes and underscores")
        return cls(match["bucket"], match["prefix"].strip("/"))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def _check(text: str) -> str:
    Location.parse(text)
    return text


LocationText = Annotated[str, AfterValidator(_check)]
