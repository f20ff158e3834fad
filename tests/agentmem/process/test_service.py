import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["well"], 0, ""),
        (["at-once"], 7, ""),
        (["well", "--log-format", "xml"], 2, "agentmem-test: log_format: 'xml' is not allowed: text or json\n"),
        (["setting"], 2, "agentmem-test: no such model\n"),
        (["address"], 2, "agentmem-test: taken\n"),
        (["own"], 1, "agentmem-test: no such directory\n"),
        (["refused"], 1, "agentmem-test: the model can't\n"),
        (["passing"], 75, "agentmem-test: the store does not answer\n"),
    ],
)
def test_how_a_process_ends(arguments: list[str], status: int, told: str) -> None:
    ended = run(*arguments)
    assert (ended.returncode, ended.stderr) == (status, told)


@pytest.mark.parametrize(("how", "error"), [("bug", "ValueError: never seen"), ("internal", "incident 1")])
def test_a_bug_is_logged_with_its_traceback(how: str, error: str) -> None:
    ended = run(how)
    assert ended.returncode == 70
    assert "C test the test failed" in ended.stderr
    assert "Traceback" in ended.stderr and error in ended.stderr


@pytest.mark.parametrize(("how", "status"), [("talkative", 0), ("setting", 2), ("refused", 1), ("bug", 70)])
def test_who_reads_the_log_does_not_change_how_a_process_ends(how: str, status: int) -> None:
    """As in `agentmem-worker 2>&1 | tee log`, where Ctrl-C ends tee as well."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as dead:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.agentmem.process.serve", how], cwd=ROOT, stdout=dead, stderr=dead, check=False
        )
    assert ended.returncode == status


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.agentmem.process.serve", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
