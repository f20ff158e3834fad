"""Whose a prefix is."""

import json

import pytest

from cache_service.tiers.remote.contract import Claim, NotOwner
from cache_service.tiers.remote.s3 import Manifest


def test_it_comes_back_as_it_was_written() -> None:
    manifest = Manifest("owner", "session")
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"format": 1}', b"null"])
def test_what_is_no_manifest_belongs_to_somebody_else(data: bytes) -> None:
    with pytest.raises(NotOwner, match="another prefix"):
        Manifest.from_bytes(data)


def test_a_newer_format_is_left_alone() -> None:
    data = json.dumps({"format": 2, "owner": "o", "session": "s"}).encode()
    with pytest.raises(NotOwner, match="newer agentmem"):
        Manifest.from_bytes(data)


def test_only_the_owner_that_knows_the_last_session_may_go_on() -> None:
    manifest = Manifest("owner", "last")
    manifest.check(Claim("owner", "new", frozenset(["last", "interrupted"])))
    manifest.check(Claim("owner", "last"))
    with pytest.raises(NotOwner, match="another data directory"):
        manifest.check(Claim("other", "new", frozenset(["last"])))
    with pytest.raises(NotOwner, match="copy of this data directory"):
        manifest.check(Claim("owner", "new", frozenset(["older"])))
