"""TLS and mTLS over HTTP and gRPC, with certificates that are made here."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme

from agentmem.channels import ClientTls, connect
from agentmem.process.settings import SettingsError
from agentmem.v1 import agent_pb2, agent_pb2_grpc
from gateway.app import Gateway
from gateway.edge.tls import Tls, TlsFiles
from tests.gateway.running import eventually, running, settings
from tests.gateway.scripted import ScriptedWorker


class Files:
    """A CA, and a server's certificate of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA()
        self.ca_file = directory / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.ca_file))
        self.cert, self.key = directory / "cert.pem", directory / "key.pem"
        self.renew()

    def renew(self) -> None:
        issued = self.ca.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(str(self.key))
        self.cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))

    @property
    def settings(self) -> dict[str, Path]:
        return {"tls_cert": self.cert, "tls_key": self.key}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def client_context(files: Files, **versions: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca_file)
    for name, version in versions.items():
        setattr(context, name, version)
    return context


async def listed(gateway: Gateway, tls: ClientTls | None) -> bool:
    async with connect(gateway.addresses["grpc"], tls=tls) as channel:
        stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
        try:
            await stub.ListAgents(agent_pb2.ListAgentsRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True


async def alive(gateway: Gateway, context: ssl.SSLContext) -> bool:
    async with httpx.AsyncClient(verify=context) as client:
        try:
            return (await client.get(f"https://{gateway.addresses['http']}/healthz")).status_code == 200
        except httpx.TransportError:
            return False


def serial(address: str, context: ssl.SSLContext) -> str:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as plain:
        plain.settimeout(10)
        with context.wrap_socket(plain, server_hostname=host) as secure:
            certificate = secure.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


async def test_tls_over_http_and_grpc(worker: ScriptedWorker, run_dir: Path, files: Files) -> None:
    async with running(run_dir, **files.settings) as gateway:
        assert gateway.addresses["tls"] == "on"
        assert await alive(gateway, client_context(files))
        assert await listed(gateway, ClientTls(files.ca_file.read_bytes()))
        # In clear text, by another CA, or as old as TLS 1.1, nothing is said.
        assert not await listed(gateway, None)
        assert not await listed(gateway, ClientTls(trustme.CA().cert_pem.bytes()))
        assert not await alive(gateway, ssl.create_default_context())
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.TransportError):
                await client.get(f"http://{gateway.addresses['http']}/healthz")


async def test_nothing_older_than_tls_1_2(files: Files) -> None:
    assert Tls(TlsFiles(files.cert, files.key)).context.minimum_version is ssl.TLSVersion.TLSv1_2


async def test_client_certificates(worker: ScriptedWorker, run_dir: Path, files: Files) -> None:
    clients = trustme.CA()
    client_ca = files.directory / "clients.pem"
    clients.cert_pem.write_to_path(str(client_ca))
    async with running(run_dir, **files.settings, tls_client_ca=client_ca) as gateway:
        for issuer, welcome in ((clients, True), (trustme.CA(), False), (None, False)):
            context, tls = client_context(files), ClientTls(files.ca_file.read_bytes())
            if issuer is not None:
                issued = issuer.issue_cert("somebody@example.org")
                issued.configure_cert(context)
                chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
                tls = ClientTls(tls.ca, chain, issued.private_key_pem.bytes())
            assert await alive(gateway, context) is welcome
            assert await listed(gateway, tls) is welcome


async def test_a_renewed_certificate_is_shown_without_a_restart(
    worker: ScriptedWorker, run_dir: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(run_dir, **files.settings) as gateway:
        context = client_context(files)
        targets = [gateway.addresses[name] for name in ("http", "grpc")]

        async def shown() -> list[str]:
            return [await asyncio.to_thread(serial, target, context) for target in targets]

        before = await shown()
        assert before[0] == before[1]
        files.key.write_text("half of a renewal")
        await eventually(lambda: "the old certificate stays" in caplog.text)
        assert await shown() == before
        caplog.clear()
        caplog.set_level("INFO")
        files.renew()
        await eventually(lambda: "certificate renewed" in caplog.text)
        after = await shown()
        assert after[0] == after[1] != before[0]
        assert await listed(gateway, ClientTls(files.ca_file.read_bytes()))


async def test_a_request_that_comes_with_the_end_of_the_handshake(run_dir: Path, files: Files) -> None:
    async with running(run_dir, **files.settings) as gateway:
        host, _, port = gateway.addresses["http"].rpartition(":")
        for _ in range(20):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=client_context(files))
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            async with asyncio.timeout(20):
                assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()


def wrong_files(files: Files) -> Iterator[tuple[dict[str, Path], str]]:
    nowhere, text = files.directory / "nowhere.pem", files.directory / "text.pem"
    text.write_text("certificates grow on trees")
    other = files.directory / "other.pem"
    trustme.CA().issue_cert("other").private_key_pem.write_to_path(str(other))
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        yield {name: nowhere}, f"{name}: cannot be read"
        yield {name: text}, "PEM"
    yield {"tls_key": other}, "key values mismatch"
    encrypted = files.directory / "encrypted.pem"
    encrypted.write_bytes(_encrypted(files.key.read_bytes()))
    yield {"tls_key": encrypted}, "without a passphrase"


def _encrypted(pem: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    key = form.load_pem_private_key(pem, None)
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"x"))


def test_wrong_files_are_named_at_start(run_dir: Path, files: Files) -> None:
    for changed, said in wrong_files(files):
        (path,) = changed.values()
        with pytest.raises(SettingsError, match=f"{path}.*{said}"):
            Gateway(settings(run_dir, **{**files.settings, **changed}))
