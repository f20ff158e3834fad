from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentmem.console import write_json
from gateway.cli.main import main
from tests.certificates import of_server
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import add_key, secured


@pytest.mark.parametrize(("encoding", "told"), [("utf-8", '["漢"]'), ("iso-8859-1", '["\\u6f22"]')])
def test_json_says_all_letters_in_any_locale(encoding: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding, write_through=True))
    write_json(["漢"])
    assert written.getvalue().decode(encoding) == f"{told}\n"


async def run(*arguments: str, **environment: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, arguments, env={"AGENTMEM_API_KEY": None, **environment})


@pytest.fixture
def key(run_dir: Path) -> str:
    return add_key(run_dir)


@pytest.fixture
async def address(worker: ScriptedWorker, run_dir: Path, tmp_path: Path, key: str) -> AsyncIterator[str]:
    """Where a gateway asks for certificates and keys."""
    of_server(tmp_path)
    files = {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.pem"}
    async with secured(run_dir, **{name: tmp_path / file for name, file in files.items()}) as gateway:
        yield gateway.addresses["grpc"]


async def test_key_and_certificates(address: str, key: str, tmp_path: Path) -> None:
    here, at = tmp_path, ("--gateway", address)
    tls = ("--ca", f"{here}/ca.pem", "--client-cert", f"{here}/client.pem", "--client-key", f"{here}/client.key")
    files = {"CA": "ca.pem", "CLIENT_CERT": "client.pem", "CLIENT_KEY": "client.key"}
    variables = {f"AGENTMEM_{name}": f"{here}/{file}" for name, file in files.items()}
    (here / "key").write_text(f"{key}\n")
    for arguments, environment in (
        (("models", *at, *tls), {"AGENTMEM_API_KEY": key}),
        (("models", *at, *tls, "--key-file", f"{here}/key"), {"AGENTMEM_API_KEY": "another"}),
        (("agents", "list", *at, "--key-file", f"{here}/key"), variables),
        (("agents", "list", *at, *tls), {"AGENTMEM_API_KEY": key, "AGENTMEM_CA": "/nowhere"}),
        (("chat", "ada", "--message", "hi", *at, *tls), {"AGENTMEM_API_KEY": key}),
        (("agents", "export", "ada", f"{here}/out", "--force", *at, *tls), {"AGENTMEM_API_KEY": key}),
    ):
        result = await run(*arguments, **environment)
        if "export" in arguments:  # whom the scripted worker does not know
            assert "does not exist" in result.output
        else:
            assert result.exit_code == 0, (arguments, result.output)
    for arguments, said in (
        (("models", *at, *tls), "AGENTMEM_API_KEY, or in a file with --key-file"),
        (("models", *at), "if it has TLS"),
        (("models", *at, "--tls"), "TLS failed"),
        (("models", *at, "--client-key", f"{here}/client.key"), "go together"),
        (("models", *at, "--ca", "/nowhere.pem"), "cannot be read"),
        (("models", *at, "--key-file", f"{here}/nowhere"), "cannot be read"),
    ):
        result = await run(*arguments)
        assert result.exit_code in (1, 2)
        assert said in result.output
    wrong = await run("models", *at, *tls, AGENTMEM_API_KEY="wrong")
    assert (wrong.exit_code, "unknown, expired or revoked" in wrong.output) == (1, True)
    ill_formed = await run("models", *at, AGENTMEM_API_KEY="a\nb")
    assert (ill_formed.exit_code, "is no API key" in ill_formed.output) == (2, True)


def test_a_key_in_clear_text_is_warned_of() -> None:
    env = {"AGENTMEM_API_KEY": "am_x"}
    loud = CliRunner().invoke(main, ["models", "--gateway", "192.0.2.1.invalid:1"], env=env)
    assert "in clear text" in loud.output
    quiet = CliRunner().invoke(main, ["models", "--gateway", "127.0.0.1:1"], env=env)
    assert "in clear text" not in quiet.output
    for result in (loud, quiet):
        assert "am_x" not in result.output
