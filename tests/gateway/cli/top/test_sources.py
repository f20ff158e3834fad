"""Real pages over HTTP, and a real gateway before a scripted worker."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest

from agentmem.channels import connect
from agentmem.process.exposition import MetricsServer
from agentmem.v1 import agent_pb2
from gateway import scraping
from gateway.cli.client import Client
from gateway.cli.top import sources
from gateway.cli.top.sources import HttpDoor, Sources, read_nodes
from gateway.pages import Page
from gateway.scraping import Service, read_page
from tests.gateway.scripted import ScriptedWorker

from .example import NODES, Processes, agent

NOT_THAT = ", not the store's; give the address that it really has"
GATEWAYS = b'agentmem_build_info{service="gateway",version="1"} 1\n'


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
    reading = await Sources(pages, channel, Client().explain, True).read()
    assert {service for service, page in reading.pages.items() if isinstance(page, Page)} == set(pages)
    page = reading.pages["worker"]
    assert isinstance(page, Page)
    assert page.total("agentmem_prompt_tokens_total", model_id="demo") == 1000
    assert reading.at <= page.at
    assert not isinstance(reading.models, str)
    assert [one.model_id for one in reading.models] == [one.model_id for one in worker.models]
    assert reading.agents is not None
    assert not isinstance(reading.agents, str)
    assert sorted(one.key.agent_id for one in reading.agents) == [f"agent-{number}" for number in range(5)]


async def test_agents_are_not_asked_for_in_vain_nor_without_end(
    pages: dict[Service, str],
    worker: ScriptedWorker,
    channel: grpc.aio.Channel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lists() -> int:
        return sum(isinstance(request, agent_pb2.ListAgentsRequest) for request in worker.requests)

    worker.agents = [agent(f"agent-{number}", 100 - number) for number in range(5)]
    assert (await Sources(pages, channel, Client().explain, False).read()).agents is None
    assert lists() == 0
    monkeypatch.setattr(sources, "_PAUSE", 1e6)
    monkeypatch.setattr(sources, "_MOST_PAGES", 1)
    asked = Sources(pages, channel, Client().explain, True)
    first = await asked.read()
    pages_asked = lists()
    assert (await asked.read()).agents is first.agents
    assert lists() == pages_asked == 1


async def test_no_source_has_to_be_there(gateway: object, channel: grpc.aio.Channel) -> None:
    """The gateway has no worker here."""
    with answering(200, GATEWAYS) as page:
        addresses: dict[Service, str] = {"gateway": page, "worker": "127.0.0.1:1", "store": "127.0.0.1:1"}
        reading = await Sources(addresses, channel, Client().explain, True).read()
    assert isinstance(reading.pages["gateway"], Page)
    assert reading.pages["store"] == "nothing listens at 127.0.0.1:1"
    assert isinstance(reading.models, str)
    assert isinstance(reading.agents, str)
    assert "worker" in reading.models


async def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "PATIENCE", 0.2)
    with listening() as silent:
        async with connect(silent) as channel:
            reading = await Sources({"worker": silent}, channel, Client().explain, True).read()
    assert reading.pages["worker"] == f"{silent} does not answer within 0.2 seconds"
    assert reading.models == reading.agents == "the gateway does not answer within 0.2 seconds"


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, b"not found", "ADDRESS answers with status 404; is that its page of metrics?"),
        (200, b"<html></html>", "what ADDRESS answers is no page of metrics; another program may have its port"),
        (200, b"process_start_time_seconds 1\n", f"ADDRESS has another program's page{NOT_THAT}"),
        (200, GATEWAYS, f"ADDRESS has the gateway's page{NOT_THAT}"),
        (200, b"", "what ADDRESS answers has no metrics; another program may have its port"),
        (200, b"up\xff 1\n", "what ADDRESS answers is no page of metrics; another program may have its port"),
    ],
)
async def test_what_is_no_page_is_said(status: int, body: bytes, why: str) -> None:
    with answering(status, body) as address:
        assert await read_page("store", address) == why.replace("ADDRESS", address)


async def test_a_server_that_speaks_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def slam() -> None:
            connection, _ = server.accept()
            connection.recv(1000)
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")
            connection.close()

        thread = threading.Thread(target=slam)
        thread.start()
        told = await read_page("store", address)
        thread.join()
    assert told == f"what {address} answers is no page of metrics; another program may have its port"


async def test_a_host_without_a_name() -> None:
    told = await read_page("store", "no-such-host.invalid:9464")
    assert isinstance(told, str)
    assert told.startswith("no-such-host.invalid:9464 cannot be read: ")


def listed(body: bytes, status: int = 200) -> AbstractContextManager[str]:
    """A gateway's HTTP door that lists nodes."""
    return answering(status, body)


ANSWER = json.dumps({"cluster_id": "c1", "node": "a", "nodes": NODES}).encode()


async def test_nodes_are_asked_for_where_the_page_knows_some(channel: grpc.aio.Channel) -> None:
    """Of the reading before; on a single machine the HTTP door is not asked at all."""
    for known, told in ((3, NODES), (0, None)):
        known_nodes = b'agentmem_gateway_cluster_nodes{state="known"} %d\n' % known
        with answering(200, GATEWAYS + known_nodes) as page, listed(ANSWER) as door:
            sources = Sources({"gateway": page}, channel, Client().explain, False, HttpDoor(door))
            assert (await sources.read()).nodes is None
            assert (await sources.read()).nodes == told


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (403, b'{"error": {"message": "this needs a key"}}', "this needs a key"),
        (200, b"<html>", "what ADDRESS answers is no list of nodes; name the gateway's HTTP door with --http"),
        (200, b"[]", "what ADDRESS answers is no list of nodes; name the gateway's HTTP door with --http"),
    ],
)
async def test_why_no_nodes_are_listed(status: int, body: bytes, why: str) -> None:
    with listed(body, status) as address:
        assert await read_nodes(HttpDoor(address)) == why.replace("ADDRESS", address)


async def test_a_door_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    told = await read_nodes(HttpDoor("127.0.0.1:1"))
    assert isinstance(told, str) and "name the gateway's HTTP door with --http" in told
    monkeypatch.setattr(scraping, "PATIENCE", 0.2)
    with listening() as silent:
        assert await read_nodes(HttpDoor(silent)) == f"{silent} does not answer within 0.2 seconds"
