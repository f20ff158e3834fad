"""Real pages over HTTP, and a real gateway before a scripted worker."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import grpc
import pytest

from agentmem.channels import connect
from agentmem.exposition import MetricsServer
from agentmem.v1 import agent_pb2, agent_pb2_grpc
from gateway.cli.client import explanation
from gateway.cli.top import sources
from gateway.cli.top.page import Page
from gateway.cli.top.reading import Agents, Service, Silence
from gateway.cli.top.sources import Sources, read_page
from tests.gateway.scripted import ScriptedWorker

from .example import Processes, agent

NOT_THAT = ", not the store's; give the address that it really has"
GATEWAYS = b'agentmem_build_info{service="gateway",version="1"} 1\n'


def explain(error: grpc.aio.AioRpcError) -> str:
    return explanation(error, "here", key="", tls=None)


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """An HTTP server that answers so; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def listening() -> Iterator[str]:
    """Who accepts connections and says nothing, as a process that was stopped does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"127.0.0.1:{silent.getsockname()[1]}"


@pytest.fixture
async def pages() -> AsyncIterator[dict[Service, str]]:
    processes = Processes()
    with ExitStack() as stack:
        servers = {}
        for service in ("gateway", "worker", "store"):
            servers[service] = MetricsServer("127.0.0.1:0", getattr(processes, service).registry)
            stack.callback(servers[service].stop)
        yield {service: server.address for service, server in servers.items()}  # type: ignore[misc]


async def test_a_reading_has_all_that_there_is(
    pages: dict[Service, str], worker: ScriptedWorker, channel: grpc.aio.Channel
) -> None:
    worker.agents = [agent(f"agent-{number}", 100 - number) for number in range(5)]
    reading = await Sources(pages, channel, explain, 2).read()
    assert {service for service, page in reading.pages.items() if isinstance(page, Page)} == set(pages)
    page = reading.pages["worker"]
    assert isinstance(page, Page)
    assert page.total("agentmem_prompt_tokens_total", model_id="demo") == 1000
    assert reading.at <= page.at
    assert not isinstance(reading.models, Silence)
    assert [one.model_id for one in reading.models] == [one.model_id for one in worker.models]
    assert isinstance(reading.agents, Agents)
    assert [one.key.agent_id for one in reading.agents.recent] == ["agent-4", "agent-3"]
    assert (reading.agents.known, reading.agents.all_listed) == (5, True)


async def test_agents_are_not_asked_for_in_vain_nor_without_end(
    pages: dict[Service, str],
    worker: ScriptedWorker,
    channel: grpc.aio.Channel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lists() -> int:
        return sum(isinstance(request, agent_pb2.ListAgentsRequest) for request in worker.requests)

    worker.agents = [agent(f"agent-{number}", 100 - number) for number in range(5)]
    assert (await Sources(pages, channel, explain, 0).read()).agents is None
    assert lists() == 0
    monkeypatch.setattr(sources, "_SHARE", 1e6)
    monkeypatch.setattr(sources, "_MOST_PAGES", 1)
    asked = Sources(pages, channel, explain, 9)
    first = await asked.read()
    pages_asked = lists()
    assert (await asked.read()).agents is first.agents
    assert lists() == pages_asked == 1
    assert isinstance(first.agents, Agents)
    assert first.agents.known == len(first.agents.recent)
    assert first.agents.all_listed == (first.agents.known == 5)


async def test_agents_that_came_in_time_are_shown(
    pages: dict[Service, str],
    worker: ScriptedWorker,
    channel: grpc.aio.Channel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the first page the gateway is gone."""
    gone = connect("127.0.0.1:1")
    stubs = [agent_pb2_grpc.AgentServiceStub(to) for to in (channel, gone)]

    async def list_agents(request: agent_pb2.ListAgentsRequest) -> agent_pb2.ListAgentsResponse:
        return await stubs.pop(0).ListAgents(request)

    worker.agents = [agent(f"agent-{number}", 100 - number) for number in range(5)]
    asked = Sources(pages, channel, explain, 9)
    monkeypatch.setattr(asked, "_agents", SimpleNamespace(ListAgents=list_agents))
    told = (await asked.read()).agents
    await gone.close(None)
    assert stubs == []
    assert isinstance(told, Agents)
    assert not told.all_listed
    assert 0 < told.known < 5


async def test_no_source_has_to_be_there(gateway: object, channel: grpc.aio.Channel) -> None:
    """The gateway has no worker here."""
    with answering(200, GATEWAYS) as page:
        addresses: dict[Service, str] = {"gateway": page, "worker": "127.0.0.1:1", "store": "127.0.0.1:1"}
        reading = await Sources(addresses, channel, explain, 5).read()
    assert isinstance(reading.pages["gateway"], Page)
    assert reading.pages["store"] == Silence("nothing listens at 127.0.0.1:1")
    assert isinstance(reading.models, Silence)
    assert isinstance(reading.agents, Silence)
    assert "worker" in reading.models.why


async def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PATIENCE", 0.2)
    with listening() as silent:
        async with connect(silent) as channel:
            reading = await Sources({"worker": silent}, channel, explain, 5).read()
    assert reading.pages["worker"] == Silence(f"{silent} does not answer within 0.2 seconds")
    assert reading.models == reading.agents == Silence("the gateway does not answer within 0.2 seconds")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, b"not found", "ADDRESS answers with status 404; is that its page of metrics?"),
        (200, b"<html></html>", "what ADDRESS answers has no metrics; another program may have its port"),
        (200, b"process_start_time_seconds 1\n", f"ADDRESS has another program's page{NOT_THAT}"),
        (200, GATEWAYS, f"ADDRESS has the gateway's page{NOT_THAT}"),
        (200, b"", "what ADDRESS answers has no metrics; another program may have its port"),
        (200, b"up\xff 1\n", "what ADDRESS answers is no page of metrics; another program may have its port"),
    ],
)
def test_what_is_no_page_is_said(status: int, body: bytes, why: str) -> None:
    with answering(status, body) as address:
        assert read_page("store", address) == Silence(why.replace("ADDRESS", address))


def test_a_server_that_speaks_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def slam() -> None:
            connection, _ = server.accept()
            connection.recv(1000)
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")
            connection.close()

        thread = threading.Thread(target=slam)
        thread.start()
        told = read_page("store", address)
        thread.join()
    assert told == Silence(f"{address} cannot be read: the connection broke (BadStatusLine)")


def test_a_host_without_a_name() -> None:
    told = read_page("store", "no-such-host.invalid:9464")
    assert isinstance(told, Silence)
    assert told.why.startswith("no-such-host.invalid:9464 cannot be read: ")
