import re
import subprocess
import sys
from pathlib import Path

import pytest

import agentmem
from agentmem import client
from agentmem.client.blocking import Blocking
from agentmem.client.sync import Agent, Client, Models, Stream, Workflows
from tests import pyright

SAMPLE = Path(__file__).with_name("typed.py")


def test_mypy_sees_exact_types() -> None:
    """A mistake that it does not see is one as well: its `type: ignore` is unused then."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(root / "pyproject.toml"), str(SAMPLE)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_pyright_sees_exact_types(tmp_path: Path) -> None:
    """In strict mode; it, too, has to find the mistakes."""
    assert pyright.problems(SAMPLE, tmp_path) == []


@pytest.mark.parametrize("kind", [Client, Agent, Stream, Models, Workflows])
def test_each_method_is_in_the_sample(kind: type[Blocking[object]]) -> None:
    text = SAMPLE.read_text()
    public = [name for name in vars(kind) if not name.startswith("_")]
    assert public
    assert [name for name in public if not re.search(rf"\.{name}\b", text)] == []


def test_the_package_exports_the_client_and_imports_nothing_for_it() -> None:
    assert {getattr(agentmem, name) for name in client.__all__} == {getattr(client, name) for name in client.__all__}
    assert set(client.__all__) <= set(dir(agentmem))
    assert all(name[0].isupper() for name in client.__all__)
    program = "import sys, agentmem, agentmem.v1; print('grpc' in sys.modules, 'agentmem.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
