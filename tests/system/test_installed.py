"""The wheel in an environment of its own, without extras: the client and the commands, and nothing of the services.

And the page that it has, served out of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from agentmem.layout import GATEWAY_FILE
from gateway.ui.files import STATIC
from tests.system.stack import hosting

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
    ("agentmem", "bench", "machine"),
    ("agentmem", "keys", "list"),
    ("agentmem", "store", "check"),
    ("agentmem", "cluster", "check"),
    ("agentmem", "run", "--schema"),
)


def uv(*arguments: str) -> None:
    """Run it, or skip where there is no index to install from."""
    if not UV.exists():
        pytest.skip("needs uv, which `make setup` installs")
    done = subprocess.run([UV, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        failed = f"uv {arguments[0]} failed, for want of an index? {done.stderr[-500:]}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(failed)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    uv("build", "--wheel", "--quiet", "--out-dir", str(directory))
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    uv("venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv"))
    uv("pip", "install", "--quiet", "--python", str(tmp_path / "venv"), str(wheel))
    return tmp_path / "venv" / "bin"


@pytest.mark.slow
async def test_the_client_and_the_commands(wheel: Path, installed: Path, tmp_path: Path) -> None:
    async with hosting("demo", "store", "worker", "gateway") as stack:
        environment = {"PATH": os.environ["PATH"], "AGENTMEM_ADDRESS": stack.grpc}

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
        table = await run("agentmem", "bench")
        assert table.startswith("**Agentmem 0.1.0, ") and "| TTFT, warm: read from disk |" in table
        assert "come with a checkout" in await run("agentmem", "bench", "ttft", status=2)
        for server in SERVERS:
            said = await run(*server, status=1)
            assert f"pip install '{wheel}[" in said
            assert said.count("\n") == 1
        adds_the_services = re.search(r"pip install '(.*?)'", said)
        assert adds_the_services is not None
        uv("pip", "install", "--dry-run", "--quiet", "--python", str(installed / "python"), adds_the_services[1])
        assert "No module named 'mlx'" in await run("python", "-c", "import mlx", status=1)


@pytest.mark.slow
async def test_the_page_is_in_the_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")
    static = tmp_path / "wheel" / "gateway" / "ui" / "static"
    here = {path.relative_to(STATIC): path.read_bytes() for path in STATIC.rglob("*") if path.is_file()}
    assert {path.relative_to(static): path.read_bytes() for path in static.rglob("*") if path.is_file()} == here
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "gateway", "--run-dir", str(tmp_path / "run"), "--metrics", ""),
        *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"),
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "wheel")},
    )
    try:
        async with asyncio.timeout(60):
            while not (addresses := tmp_path / "run" / GATEWAY_FILE).exists():
                assert process.returncode is None
                await asyncio.sleep(0.05)
        # Its files are changed before the first is asked for, so that they are seen to be those of the wheel.
        (static / "icon.svg").write_text("<svg/>")
        async with httpx.AsyncClient(base_url=f"http://{json.loads(addresses.read_text())['http']}/ui/") as http:
            assert (await http.get("")).content == here[Path("index.html")]
            assert (await http.get("main.js")).content == here[Path("main.js")]
            assert (await http.get("icon.svg")).text == "<svg/>"
    finally:
        process.terminate()
        await process.wait()
