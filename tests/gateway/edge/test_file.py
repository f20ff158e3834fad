import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.diagnostics import FileError
from gateway.edge.key_file import changing, read
from tests.gateway.secured import add_key


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
