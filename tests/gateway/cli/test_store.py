"""`agentmem store` runs the store's own command and passes on what it says and how it ends."""

import subprocess
import sys
from pathlib import Path


def agentmem(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_names_its_commands() -> None:
    for arguments in (("store",), ("store", "--help")):
        told = agentmem(*arguments)
        assert told.returncode == 0 and "check" in told.stdout and "du" in told.stdout


def test_status_and_words_are_the_stores(tmp_path: Path) -> None:
    told = agentmem("store", "check", str(tmp_path), "--json")
    assert told.returncode == 2 and "no store.db" in told.stderr and told.stdout == ""
