from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner, Result

from agentmem.console import write_json
from gateway.app import Gateway
from gateway.cli.main import main
from tests.gateway.running import settings
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import add_key


@pytest.mark.parametrize(("encoding", "told"), [("utf-8", '["漢"]'), ("iso-8859-1", '["\\u6f22"]')])
def test_json_says_all_letters_in_any_locale(encoding: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding, write_through=True))
    write_json(["漢"])
    assert written.getvalue().decode(encoding) == f"{told}\n"


class Secured:
    def __init__(self, gateway: Gateway, directory: Path, key: str) -> None:
        self.address = gateway.addresses["grpc"]
        self.directory = directory
        self.key = key

    async def run(self, *arguments: str, **environment: str) -> Result:
        return await asyncio.to_thread(
            CliRunner().invoke, main, arguments, env={"AGENTMEM_API_KEY": None, **environment}
        )


@pytest.fixture
async def secured_tls(worker: ScriptedWorker, run_dir: Path, tmp_path: Path) -> AsyncIterator[Secured]:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, issued in (("server", ca.issue_cert("127.0.0.1")), ("client", ca.issue_cert("me@example.org"))):
        issued.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
    key = add_key(run_dir)
    files = {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.pem"}
    tls = {name: tmp_path / file for name, file in files.items()}
    gateway = Gateway(settings(run_dir, keys=run_dir / "keys.json", **tls))
    await gateway.start()
    yield Secured(gateway, tmp_path, key)
    await gateway.stop()


async def test_key_and_certificates(secured_tls: Secured) -> None:
    here = secured_tls.directory
    at = ("--gateway", secured_tls.address)
    tls = ("--ca", f"{here}/ca.pem", "--client-cert", f"{here}/client.pem", "--client-key", f"{here}/client.key")
    variables = {
        "AGENTMEM_CA": f"{here}/ca.pem",
        "AGENTMEM_CLIENT_CERT": f"{here}/client.pem",
        "AGENTMEM_CLIENT_KEY": f"{here}/client.key",
    }
    (here / "key").write_text(f"{secured_tls.key}\n")
    for arguments, environment in (
        (("models", *at, *tls), {"AGENTMEM_API_KEY": secured_tls.key}),
        (("models", *at, *tls, "--key-file", f"{here}/key"), {"AGENTMEM_API_KEY": "another"}),
        (("agents", *at, *tls, "--key-file", f"{here}/key"), {}),
        (("agents", "list", *at, "--key-file", f"{here}/key"), variables),
        (("agents", "list", *at, *tls), {"AGENTMEM_API_KEY": secured_tls.key, "AGENTMEM_CA": "/nowhere"}),
        (("chat", "ada", "--message", "hi", *at, *tls), {"AGENTMEM_API_KEY": secured_tls.key}),
        (("agents", "export", "ada", f"{here}/out", "--force", *at, *tls), {"AGENTMEM_API_KEY": secured_tls.key}),
    ):
        result = await secured_tls.run(*arguments, **environment)
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
        result = await secured_tls.run(*arguments)
        assert result.exit_code in (1, 2)
        assert said in result.output
    wrong = await secured_tls.run("models", *at, *tls, AGENTMEM_API_KEY="wrong")
    assert (wrong.exit_code, "unknown, expired or revoked" in wrong.output) == (1, True)
    ill_formed = await secured_tls.run("models", *at, AGENTMEM_API_KEY="a\nb")
    assert (ill_formed.exit_code, "is no key" in ill_formed.output) == (2, True)


def test_a_key_in_clear_text_is_warned_of() -> None:
    env = {"AGENTMEM_API_KEY": "am_x"}
    loud = CliRunner().invoke(main, ["models", "--gateway", "192.0.2.1.invalid:1"], env=env)
    assert "in clear text" in loud.output
    quiet = CliRunner().invoke(main, ["models", "--gateway", "127.0.0.1:1"], env=env)
    assert "in clear text" not in quiet.output
    for result in (loud, quiet):
        assert "am_x" not in result.output
