"""Whose a prefix is."""

import json

import pytest

from cache_service.tiers.remote.contract import NotOwner
from cache_service.tiers.remote.s3 import manifest, owner_of


def test_it_comes_back_as_it_was_written() -> None:
    assert owner_of(manifest("owner")) == "owner"


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"format": 1}', b"null"])
def test_a_foreign_manifest_belongs_to_somebody_else(data: bytes) -> None:
    with pytest.raises(NotOwner, match="another prefix"):
        owner_of(data)


def test_a_newer_format_is_left_alone() -> None:
    with pytest.raises(NotOwner, match="newer agentmem"):
        owner_of(json.dumps({"format": 2, "owner": "o"}).encode())
