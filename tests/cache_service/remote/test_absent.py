"""Without an object store: nothing is kept, and nothing is there."""

from pathlib import Path

import pytest

from cache_service.files import Kind
from cache_service.remote import (
    Claim,
    NoRemoteTier,
    ObjectMissing,
    ObjectName,
    RemoteRefused,
    RemoteSettings,
    connect,
)

NAME = ObjectName(Kind.BLOCK, bytes(32), bytes(16))


def test_it_is_the_default() -> None:
    assert isinstance(connect(RemoteSettings()), NoRemoteTier)


def test_it_keeps_nothing_and_has_nothing_to_delete(tmp_path: Path) -> None:
    tier = NoRemoteTier()
    tier.claim(Claim("o", "s"))
    assert tier.holds(Claim("o", "s"))
    with pytest.raises(RemoteRefused):
        tier.put(NAME, tmp_path / "file")
    with pytest.raises(ObjectMissing):
        tier.get(NAME, 1, tmp_path / "file")
    tier.delete([NAME])
    assert list(tier.names()) == []
    assert list(tmp_path.iterdir()) == []
