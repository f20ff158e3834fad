"""Types as users see them: exact signatures, also of what blocks."""

import subprocess
import sys
from pathlib import Path

import agentmem
from agentmem import client

SAMPLE = Path(__file__).with_name("typed.py")


def test_a_type_checker_sees_exact_types() -> None:
    """A mistake that it does not see is one as well: its `type: ignore` is unused then."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(root / "pyproject.toml"), str(SAMPLE)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout


def test_the_package_exports_the_client_and_imports_nothing_for_it() -> None:
    assert {getattr(agentmem, name) for name in client.__all__} == {getattr(client, name) for name in client.__all__}
    assert set(client.__all__) <= set(dir(agentmem))
    assert all(name[0].isupper() for name in client.__all__)
    program = "import sys, agentmem, agentmem.v1; print('grpc' in sys.modules, 'agentmem.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
