from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from agentmem import AsyncClient, ClientTls, GatewayUnreachable, errors
from gateway.app import Gateway
from tests.agentmem.test_errors import EXAMPLES
from tests.gateway.running import settings
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import add_key, secured


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
async def test_each_comes_as_it_was_raised(address: str, worker: ScriptedWorker, error: errors.AgentmemError) -> None:
    async with AsyncClient(address, patience=0, timeout=600) as client:
        agent = client.agent("marco", model="demo")
        worker.error = error
        for call in (agent.ask("Hi"), agent.tell("Hi"), agent.fork("ada"), agent.info()):
            with pytest.raises(type(error)) as raised:
                await call
            assert type(raised.value) is type(error)
            assert raised.value.message == error.message
            assert vars(raised.value) == vars(error)
        for listing in (agent.turns(), client.agents()):
            with pytest.raises(type(error)):
                await anext(listing)


async def test_what_the_contract_cannot_say(client: AsyncClient, worker: ScriptedWorker) -> None:
    marco, nameless = client.agent("marco", model="demo"), client.agent("\ud800", model="demo")
    calls = (marco.trim(-1), marco.fork("ada", keep_tokens=-1), marco.snapshot("\ud800"), nameless.info())
    for call in calls:
        with pytest.raises(errors.InvalidArgument):
            await call


async def test_nobody_answers() -> None:
    async with AsyncClient("127.0.0.1:1", key="") as client:
        with pytest.raises(GatewayUnreachable, match=r"no gateway answers at 127\.0\.0\.1:1; start one"):
            await client.agent("marco", model="demo").ask("Hi")


async def test_what_a_lost_deletion_has_erased_is_no_error(client: AsyncClient, worker: ScriptedWorker) -> None:
    marco = client.agent("marco")
    await marco.model()

    def erased(_: str) -> None:
        worker.refusals["DeleteAgent"] = errors.NotFound("agent", "marco")

    client.connection.on_outage = erased
    worker.refusals["DeleteAgent"] = errors.Unavailable("the object store does not answer", 0.05)
    assert (await marco.delete()).memories == 0
    with pytest.raises(errors.NotFound):
        await marco.delete()
    client.connection.on_outage = lambda _: worker.refusals.clear()
    worker.refusals["DeleteAgent"] = errors.Unavailable("the object store does not answer", 0.05)
    assert (await marco.delete()).memories == 1


async def test_keys(worker: ScriptedWorker, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = add_key(run_dir)
    async with secured(run_dir) as gateway:
        address = gateway.addresses["grpc"]
        async with AsyncClient(address, key=key) as client:
            assert [model.name async for model in client.models.list()] == ["demo", "org/large"]
        async with AsyncClient(address, key="wrong") as client:
            with pytest.raises(errors.Unauthenticated, match="unknown, expired or revoked"):
                await client.models.get()
        monkeypatch.setenv("AGENTMEM_API_KEY", f"{key}\n")
        monkeypatch.setenv("AGENTMEM_ADDRESS", address)
        async with AsyncClient() as client:
            assert (await client.models.get()).is_default
    with pytest.raises(errors.InvalidArgument, match="key"):
        AsyncClient(key="a\nb")


async def test_tls(worker: ScriptedWorker, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = trustme.CA()
    server, mine = ca.issue_cert("127.0.0.1"), ca.issue_cert("me@example.org")
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, issued in (("server", server), ("client", mine)):
        issued.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
    files = {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.pem"}
    gateway = Gateway(settings(run_dir, **{name: tmp_path / file for name, file in files.items()}))
    await gateway.start()
    try:
        address = gateway.addresses["grpc"]
        pem = {name: (tmp_path / file).read_bytes() for name, file in (("cert", "client.pem"), ("key", "client.key"))}
        tls = ClientTls(ca=ca.cert_pem.bytes(), **pem)
        async with AsyncClient(address, tls=tls) as client:
            assert (await client.agent("marco").ask("Hi")).text == "Hello 🌍"
        for lacking, said in ((ClientTls(ca=tls.ca), "TLS failed"), (False, "tls=True"), (True, "TLS failed")):
            async with AsyncClient(address, tls=lacking) as client:
                with pytest.raises(GatewayUnreachable, match=said):
                    await client.models.get()
        monkeypatch.setenv("AGENTMEM_CA", str(tmp_path / "ca.pem"))
        monkeypatch.setenv("AGENTMEM_CLIENT_CERT", str(tmp_path / "client.pem"))
        monkeypatch.setenv("AGENTMEM_CLIENT_KEY", str(tmp_path / "client.key"))
        async with AsyncClient(address) as client:
            assert (await client.models.get()).name == "demo"
    finally:
        await gateway.stop()
