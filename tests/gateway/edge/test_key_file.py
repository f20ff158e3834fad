"""The file of keys: its format, and how it is changed and read."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.diagnostics import FileError
from agentmem.errors import InvalidArgument
from agentmem.tracing import without_secrets
from gateway.edge.key_file import changing, parse, read, render
from gateway.edge.keys import new, secret_digest, split
from tests.gateway.secured import add_key

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_a_key_is_shown_once_and_kept_as_a_hash() -> None:
    key, shown = new("team-a", NOW, label="ci", expires=NOW + timedelta(days=1))
    assert str(shown) == f"am_{key.id}_{shown.secret}"
    assert split(str(shown)) == shown
    assert key.sha256 == secret_digest(shown.secret).hex()
    text = render([key])
    assert shown.secret not in text
    assert parse(Path("keys.json"), text) == {key.id: key}
    assert not key.expired(NOW)
    assert key.expired(NOW + timedelta(days=1))


@given(
    st.lists(
        st.builds(
            lambda namespace, label, admin, running, rate: new(
                namespace, NOW, label=label, admin=admin, max_running=running, max_per_minute=rate
            )[0],
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
            st.text(st.characters(codec="utf-8")),
            st.booleans(),
            st.none() | st.integers(0, 10**6),
            st.none() | st.integers(0, 10**6),
        )
    )
)
def test_a_file_says_what_was_written(keys: list[Any]) -> None:
    assert list(parse(Path("keys.json"), render(keys)).values()) == keys


@given(st.text() | st.builds(lambda a, b: f"am_{a}_{b}", st.text(), st.text()))
def test_whatever_is_shown_is_taken_apart_or_not(credential: str) -> None:
    shown = split(credential)
    assert shown is None or str(shown) == credential


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"namespace": ""}, "namespace"),
        ({"namespace": "x" * 257}, "namespace"),
        ({"namespace": "n", "max_running": -1}, "max_running"),
    ],
)
def test_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        new(created=NOW, **fields)


def damaged(**changed: Any) -> str:
    file = json.loads(render([new("n", NOW)[0]]))
    file["keys"][0].update(changed)
    return json.dumps(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"^keys\.json:1:1: is not JSON: "),
        ("[" * 100_000, "is not JSON"),
        ("[]", r"^keys\.json: Input should be"),
        ('{"version": 2, "keys": []}', r"^keys\.json: version: "),
        ('{"keys": []}', r"^keys\.json: version: "),
        (damaged(sha256="SECRET"), r"^keys\.json: keys\.0\.sha256: "),
        (damaged(id="../x"), r"^keys\.json: keys\.0\.id: "),
        (damaged(namespace=""), r"^keys\.json: keys\.0\.namespace: must not be empty"),
        (damaged(expires="2026-01-01T00:00:00"), r"^keys\.json: keys\.0\.expires: "),
        (damaged(scope="SECRET"), r"^keys\.json: keys\.0\.scope: "),
        (render([new("n", NOW)[0]] * 2), "has an id twice"),
    ],
)
def test_no_file(text: str, said: str) -> None:
    with pytest.raises(FileError, match=said) as caught:
        parse(Path("keys.json"), text)
    assert "SECRET" not in str(caught.value)


def test_secrets_are_left_out_of_a_text() -> None:
    identifier = "0123456789abcdef"[:12]
    shown = f"am_{identifier}_{'s' * 43}"
    assert split(shown) is not None
    assert without_secrets(f"/v1/agents/{shown}?x") == f"/v1/agents/am_{identifier}_…?x"
    assert without_secrets("am_bient_music and am_") == "am_bient_music and am_"


def add(path: Path) -> str:
    return add_key(path.parent).split("_")[1]


def test_is_the_owners_alone_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new/keys.json"
    first = add(path)
    inode = path.stat().st_ino
    with path.open() as held:
        second = add(path)
        assert second not in held.read()  # who reads has the file of before, whole
    assert path.stat().st_ino != inode
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert set(read(path)[0]) == {first, second}
    assert sorted(file.name for file in path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    known = add(path)
    with pytest.raises(KeyError), changing(path) as keys:
        del keys[known], keys[known]
    assert set(read(path)[0]) == {known}


@pytest.mark.slow
def test_several_programs_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    command = [sys.executable, "-m", "gateway.cli.main", "keys", "create", "--namespace", "n", "--keys", str(path)]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait(60) for process in running] == [0] * 4
    assert len(read(path)[0]) == 4


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_open_to_others(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys.json"
    add(path)
    path.chmod(mode)
    with pytest.raises(FileError, match=f"chmod 600 {path}"):
        read(path)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(FileError, match=f"agentmem keys create --keys {path}"):
        read(path)
    path.touch(0o600)
    for content, said in ((b"{", "is not JSON"), (b"\xff", "is not UTF-8")):
        path.write_bytes(content)
        with pytest.raises(FileError, match=said):
            read(path)
        with pytest.raises(FileError, match=said):
            add(path)  # nothing is built on what cannot be read
        assert path.read_bytes() == content
    with pytest.raises(FileError, match="cannot be read"):
        read(tmp_path)
    with pytest.raises(FileError, match="cannot be written to"):
        add(path / "keys.json")
