from pathlib import Path

import pytest

from agentmem.layout import ForeignDirectory, refuse_foreign


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["run", "up.lock", "worker", "lock", "probe"],
        ["blocks", "windows", "staging", "logs", "store.db-wal"],
        ["store.sock", "store.sock.lock", "gateway.json", "lost+found", ".DS_Store"],
        ["store.db", "thesis.txt"],
    ],
)
def test_ours(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    refuse_foreign(tmp_path)
    refuse_foreign(tmp_path / "absent")


@pytest.mark.parametrize("names", [["thesis.txt"], ["staging", "src"], [".git", "run"]])
def test_not_ours(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(ForeignDirectory, match="choose a directory of its own as --data"):
        refuse_foreign(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
