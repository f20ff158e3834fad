"""The wheel in an environment of its own, without extras: the client and the commands, and nothing of the services."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.stack import running

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
CALL = """
import sys
from agentmem import Client
with Client() as client:
    print(client.agent("marco").ask("The key is in the cellar.", max_tokens=20).durable)
found = {name.partition(".")[0] for name in sys.modules}
print(sorted(found & {"mlx", "mlx_lm", "numpy", "pydantic", "starlette", "click"}))
"""
SERVERS = (
    ("agentmem-store",),
    ("agentmem-store", "check"),
    ("agentmem-worker", "--help"),
    ("agentmem-gateway",),
    ("agentmem", "up"),
    ("agentmem", "doctor"),
    ("agentmem", "keys", "list"),
    ("agentmem", "store", "check"),
    ("agentmem", "cluster", "check"),
    ("agentmem", "run", "--schema"),
)
"""What needs the services' packages."""


def uv(*arguments: str) -> None:
    """Run it, or skip where there is no index to install from."""
    if not UV.exists():
        pytest.skip("needs uv, which `make setup` installs")
    done = subprocess.run([UV, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        failed = f"uv {arguments[0]} failed, for want of an index? {done.stderr[-500:]}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(failed)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The folder of an environment's programs, in which the wheel is installed."""
    uv("build", "--wheel", "--quiet", "--out-dir", str(tmp_path / "dist"))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    uv("venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv"))
    uv("pip", "install", "--quiet", "--python", str(tmp_path / "venv"), str(wheel))
    return tmp_path / "venv" / "bin"


async def test_the_client_and_the_commands(installed: Path, tmp_path: Path) -> None:
    async with running("demo", "store", "worker", "gateway") as stack:
        environment = {"PATH": os.environ["PATH"], "AGENTMEM_ADDRESS": f"127.0.0.1:{stack.ports['grpc']}"}

        async def run(program: str, *arguments: str, status: int = 0) -> str:
            process = await asyncio.create_subprocess_exec(
                *(installed / program, *arguments),
                cwd=tmp_path,
                env=environment,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await process.communicate()
            assert process.returncode == status, said.decode()
            return said.decode()

        assert (await run("python", "-c", CALL)).split("\n") == ["True", "[]", ""]
        assert "cellar" in await run("agentmem", "chat", "marco", "--message", "Where is the key?")
        assert "marco" in await run("agentmem", "agents")
        assert "demo" in await run("agentmem", "models")
        assert "no runs yet" in await run("agentmem", "workflows")
        for server in SERVERS:
            said = await run(*server, status=1)
            assert "pip install 'agentmem[" in said
            assert said.count("\n") == 1
        assert "No module named 'mlx'" in await run("python", "-c", "import mlx", status=1)
