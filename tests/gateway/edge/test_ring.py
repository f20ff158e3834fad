import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentmem.diagnostics import FileError
from agentmem.errors import Unauthenticated, Unavailable
from gateway.edge.callers import CallerLimits
from gateway.edge.key_file import KeyFile
from gateway.edge.key_ring import KeyRing
from gateway.edge.keys import Shown, split
from tests.gateway.secured import add_key, revoke

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def add(path: Path, namespace: str = "team-a", **fields: Any) -> Shown:
    shown = split(add_key(path.parent, namespace, **fields))
    assert shown is not None
    return shown


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_who_shows_a_key(path: Path) -> None:
    ours, theirs = add(path, max_running=3, admin=True), add(path, "team-b")
    ring = KeyRing(KeyFile(path), CallerLimits(7, 8))
    caller = ring.authenticate(str(ours))
    assert (caller.namespace, caller.key_id, caller.admin) == ("team-a", ours.id, True)
    assert caller.limits == CallerLimits(3, 8)
    other = ring.authenticate(str(theirs))
    assert (other.namespace, other.admin, other.limits) == ("team-b", False, CallerLimits(7, 8))


def test_who_shows_none(path: Path) -> None:
    ours, theirs = add(path), add(path, "team-b")
    ring = KeyRing(KeyFile(path))
    unknown = Shown("0" * 12, ours.secret)
    refusals = set()
    for credential in (Shown(ours.id, theirs.secret), unknown, ours.secret, "am__", "é", "x" * 5000):
        with pytest.raises(Unauthenticated) as caught:
            ring.authenticate(str(credential))
        refusals.add(caught.value.message)
    assert len(refusals) == 1  # nothing tells which ids there are
    for credential in (None, ""):
        with pytest.raises(Unauthenticated, match="no key was sent"):
            ring.authenticate(credential)


def test_expires(path: Path) -> None:
    shown = add(path, expires=NOW + timedelta(hours=1))
    now = NOW
    ring = KeyRing(KeyFile(path), now=lambda: now)
    caller = ring.authenticate(str(shown))
    assert ring.stands(caller)
    now += timedelta(hours=1)
    assert not ring.stands(caller)
    with pytest.raises(Unauthenticated):
        ring.authenticate(str(shown))


def test_a_changed_file_is_seen_by_the_next_request(path: Path) -> None:
    first = add(path)
    ring = KeyRing(KeyFile(path))
    caller = ring.authenticate(str(first))
    second = add(path)
    assert ring.authenticate(str(second)).key_id == second.id
    revoke(path.parent, str(first))
    with pytest.raises(Unauthenticated):
        ring.authenticate(str(first))
    assert not ring.stands(caller)


def test_a_change_within_the_clocks_resolution_is_seen(path: Path) -> None:
    first = add(path)
    ring = KeyRing(KeyFile(path))
    before = path.stat()
    text = path.read_text().replace(first.id, "0" * 12)
    path.write_text(text)  # in place, of the same size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_ino == before.st_ino
    with pytest.raises(Unauthenticated):
        ring.authenticate(str(first))


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda path: path.write_text(path.read_text()[:-20]), lambda path: path.chmod(0o644)],
    ids=["gone", "ill-formed", "open to others"],
)
def test_fails_closed_until_it_is_mended(path: Path, damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    shown = add(path)
    saved = path.read_text()
    ring = KeyRing(KeyFile(path))
    caller = ring.authenticate(str(shown))
    damage(path)
    for credential in (str(shown), None, "am_x"):
        with pytest.raises(Unavailable) as caught:
            ring.authenticate(credential)
        assert str(path) not in caught.value.message
    assert ring.stands(caller)  # what runs is not ended by a slip of an editor
    (logged,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert str(path) in logged.fields["problem"]  # type: ignore[attr-defined]
    assert shown.secret not in caplog.text
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_text(saved)
    assert ring.authenticate(str(shown)) == caller


def test_refuses_to_start(path: Path) -> None:
    with pytest.raises(FileError):
        KeyRing(KeyFile(path))
