"""A home with spaces, decomposed letters and what means something in URLs; variables as launchd gives them."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from inference_service.models.sources import registry
from tests.system.stack import free_port
from tests.system.test_first_minutes import serving

DEMO = Path(registry([])["demo"].source)
AGENTMEM = Path(sys.executable).with_name("agentmem")
NAME = "Bu\u0308ro: 100%20 #1 ?a=b&c 'n'"
PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp", prefix="am") as directory:
        home = Path(directory, NAME)
        home.mkdir()
        yield home


@pytest.mark.slow
async def test_everything_works_in_such_a_home(home: Path) -> None:
    model, file = home / "Mein Bu\u0308romodell", home / "Ada, 1.agent"
    shutil.copytree(DEMO, model)
    ports = {name: f"127.0.0.1:{free_port(3)}" for name in ("http", "grpc", "metrics")}
    environment = {
        **{"HOME": str(home), "PATH": PATH, "AGENTMEM_WORKER_QUALITY_CHECK": "false"},
        **{f"AGENTMEM_UP_{name.upper()}": address for name, address in ports.items()},
    }

    async def run(*arguments: str | Path) -> str:
        process = await asyncio.create_subprocess_exec(
            *(AGENTMEM, *arguments), env=environment, cwd=home,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode == 0, (arguments, out.decode(), err.decode())
        return out.decode()

    gateway = "--gateway", ports["grpc"]
    up = f'"{AGENTMEM}" up "{model}"'
    async with serving(up, environment) as said:
        assert "model    Mein Büromodell" in said, "as one types it"
        await run("chat", "Ada", "--message", "The key is in the cellar.", *gateway)
        await run("agents", "export", "Ada", file.name, *gateway)
        await run("agents", "import", file, "ada", *gateway)
    assert (home / ".agentmem" / "store.db").exists() and list((home / ".agentmem").rglob("*.safetensors"))
    assert [path for path in (home / ".agentmem").rglob("*") if path.name != path.name.lower()] == [], "none of Ada's"
    assert list((home / ".cache" / "agentmem" / "compiled").rglob("*.so")), "MLX has compiled there"
    found = json.loads(await run("doctor", "--json", model))
    assert found["problems"] == found["not_checked"] == 0
    assert "Ada" in await run("store", "du", home / ".agentmem")
    await run("store", "check", home / ".agentmem")
    async with serving(up, environment):
        for agent in ("Ada", "ada"):
            assert "cellar" in await run("chat", agent, "--message", "Where is the key?", *gateway)
