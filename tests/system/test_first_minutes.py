"""A new user's first minutes: the wheel by uvx and pipx, and README's two commands, each with a home of its own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from playwright.async_api import Page, expect

from inference_service.models.sources import registry
from tests import blas
from tests.full_matrix import FULL
from tests.model_hub import Repository, model_hub
from tests.system.page.browser import launched, opened
from tests.system.stack import free_port
from tests.system.test_installed import ROOT, UV, uv, wheel  # noqa: F401 - a fixture

MODEL = "mlx-community/Qwen2.5-0.5B-Instruct-4bit"
DEMO = Path(registry([])["demo"].source)
MACHINE = ("PATH", "LANG", "LD_PRELOAD", "SSL_", "PIP_", "UV_", "REQUESTS_", "HTTP", "NO_PROXY", "no_proxy", "http")
"""Prefixes of the variables that are kept: for the way to a package index, and for these tests' BLAS (`tests.blas`)."""


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty home directory, whose name leaves room for the paths of sockets."""
    with TemporaryDirectory(dir="/tmp", prefix="am") as directory:
        yield Path(directory)


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    """Return the environment of a user who has installed nothing, with our caches of downloads."""
    bare = {name: value for name, value in os.environ.items() if name.startswith(MACHINE)}
    for name in ("UV_PROJECT_ENVIRONMENT", "PIP_USER"):
        bare.pop(name, None)
    cache = subprocess.run((UV, "cache", "dir"), capture_output=True, text=True, check=True).stdout.strip()
    return {**bare, "HOME": str(home), "UV_CACHE_DIR": cache, "PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip")}


def run(environment: dict[str, str], *command: str | Path, status: int = 0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=280)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


@pytest.mark.slow
def test_uvx(
    wheel: Path,  # noqa: F811
    environment: dict[str, str],
) -> None:
    uvx = UV.with_name("uvx")
    assert run(environment, uvx, "--from", wheel, "agentmem", "--version").startswith("agentmem, version ")
    assert "doctor" in run(environment, uvx, "--from", wheel, "agentmem", "--help")
    completing = environment | {
        "_AGENTMEM_COMPLETE": "bash_complete",
        "COMP_WORDS": "agentmem up --",
        "COMP_CWORD": "2",
    }
    assert "--data" not in run(completing, uvx, "--from", wheel, "agentmem"), "what is not installed is not completed"
    for needs_more in (("models", "search"), ("chat", "--model", "demo", "--message", "hi")):
        said = run(environment, uvx, "--from", wheel, "agentmem", *needs_more, status=1)
        assert f"pip install '{wheel}[" in said and "Traceback" not in said


def two_commands() -> tuple[str, str, str]:
    """Return those for Linux, and the address of the page."""
    section = (ROOT / "README.md").read_text().partition("## Two commands\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"### Linux\n\n```sh\n(.*?)```", section, re.DOTALL)
    install, _, up = block.partition("\n")
    (page,) = re.findall(r"<(http://\S+/ui/)>", section)
    return install, up, page


@pytest.mark.slow
async def test_readme_leads_to_a_conversation_in_the_page(
    wheel: Path,  # noqa: F811
    home: Path,
    environment: dict[str, str],
) -> None:
    """Its commands, in their order; the index, the hub and the ports are this test's.

    With AGENTMEM_FULL_MATRIX=1 the wheel is installed, by pip; else it is only looked whether it could be, and the
    commands are those of this checkout: libraries that are new on a machine take half a minute to be imported first.
    """
    install, up, page_address = two_commands()
    assert 'pip install ".[cpu]"' in install
    install = install.replace(".[cpu]", f"{wheel}[cpu]")
    venv = home / "venv"
    uv("venv", "--quiet", *(["--seed"] if FULL else []), "--python", sys.executable, str(venv))
    environment["VIRTUAL_ENV"] = str(venv)
    run(environment, "bash", "-ec", f"PATH={venv / 'bin'}:$PATH {install}" if FULL else f"{UV} {install} --dry-run")
    environment["PATH"] = f"{venv / 'bin' if FULL else UV.parent}:{environment['PATH']}"

    address = f"127.0.0.1:{free_port()}"
    with model_hub() as hub:
        hub.repositories[MODEL] = Repository({path.name: path.read_bytes() for path in DEMO.iterdir()})
        environment |= {
            **{"HF_ENDPOINT": f"http://127.0.0.1:{hub.port}", "NO_PROXY": "*", "AGENTMEM_UP_HTTP": address},
            **{"AGENTMEM_UP_GRPC": "127.0.0.1:0", "AGENTMEM_UP_METRICS": "127.0.0.1:0"},
            **{"AGENTMEM_WORKER_QUALITY_CHECK": "false", blas.VARIABLE: "1"},
        }
        assert MODEL in up
        async with serving(up, environment) as said:
            assert f"model    {MODEL}" in said
            assert f"web UI   http://{address}/ui/" in said
            base, _, place = page_address.replace("127.0.0.1:8080", address).partition("/ui/")
            async with launched() as browser, opened(browser, base, place) as page:
                await talk(page)
    assert (home / ".agentmem" / "store.db").exists()


async def talk(page: Page) -> None:
    await page.get_by_role("link", name="Talk", exact=True).click()
    for turn, text in enumerate(("The key is in the cellar.", "Where is the key?"), 1):
        await page.get_by_label("Message", exact=True).fill(text)
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("article[data-state=done]")).to_have_count(turn, timeout=60_000)
    await expect(page.locator("article .said.assistant").last).to_contain_text("The key is in the cellar.")


@asynccontextmanager
async def serving(command: str, environment: dict[str, str]) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", f"exec {command}"), env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    said = ""
    try:
        async with asyncio.timeout(200):
            async for line in process.stdout:
                said += line.decode()
                if "Ready" in said:
                    break
        assert "Ready" in said, said
        yield said
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), 60)
