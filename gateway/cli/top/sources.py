"""One reading of all sources: the metrics pages over HTTP, models and agents over the gateway's gRPC.

Where the gateway's page says that it is of a cluster, its HTTP door is asked for the nodes as well.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import grpc

from agentmem.v1 import agent_pb2, agent_pb2_grpc, model_pb2, model_pb2_grpc
from gateway import scraping
from gateway.pages import Page
from gateway.scraping import Service, read_page

_MOST_PAGES: Final = 10
_PAUSE: Final = 10
"""Agents are listed again after so many times as long as listing them took, which spares the store."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Reading:
    """All sources at one time: `at` in seconds of a monotonic clock, `time` in UTC.

    A text in place of a page or a list says why its source did not answer. `agents` is None where none are wanted,
    `nodes`, as GET /v1/cluster lists them, where the gateway is of no cluster.
    """

    at: float
    time: datetime
    pages: Mapping[Service, Page | str]
    models: list[model_pb2.Model] | str
    agents: list[agent_pb2.Agent] | str | None
    nodes: list[dict[str, Any]] | str | None = None


@dataclass(frozen=True)
class HttpDoor:
    """The gateway's HTTP door: HOST:PORT, the key to show, and TLS, where it has that."""

    address: str
    key: str = ""
    tls: ssl.SSLContext | None = None


class Sources:
    """The three pages, the gateway on `channel`, and its HTTP door. `explain` says in words why an RPC failed."""

    def __init__(
        self,
        pages: Mapping[Service, str],
        channel: grpc.aio.Channel,
        explain: Callable[[grpc.aio.AioRpcError], str],
        with_agents: bool,
        door: HttpDoor | None = None,
    ) -> None:
        self._pages = pages
        self._door = door
        self._of_cluster = False
        self._models = model_pb2_grpc.ModelServiceStub(channel)
        self._agents = agent_pb2_grpc.AgentServiceStub(channel)
        self._explain = explain
        self._listed: list[agent_pb2.Agent] | str | None = None
        self._list_again = float("-inf") if with_agents else float("inf")

    async def read(self) -> Reading:
        """Return a reading, in a little more than scraping.PATIENCE at most. No failure of a source raises."""
        at, now = time.monotonic(), datetime.now(UTC)
        pages, models, agents, nodes = await asyncio.gather(
            asyncio.gather(*(read_page(service, address) for service, address in self._pages.items())),
            self._ask(lambda: self._models.ListModels(model_pb2.ListModelsRequest(page_size=1000))),
            self._latest_agents(),
            self._nodes(),
        )
        listed = models if isinstance(models, str) else list(models.models)
        by_service = dict(zip(self._pages, pages, strict=True))
        if isinstance(page := by_service.get("gateway"), Page):
            self._of_cluster = bool(page.total("agentmem_gateway_cluster_nodes", state="known"))
        return Reading(at, now, by_service, listed, agents, nodes)

    async def _nodes(self) -> list[dict[str, Any]] | str | None:
        """Return the nodes, None where the page of the reading before knew none."""
        return await read_nodes(self._door) if self._of_cluster and self._door is not None else None

    async def _latest_agents(self) -> list[agent_pb2.Agent] | str | None:
        began = time.monotonic()
        if began >= self._list_again:
            self._listed = await self._ask(self._list_agents)
            took = time.monotonic() - began
            self._list_again = began + took * (1 if isinstance(self._listed, str) else 1 + _PAUSE)
        return self._listed

    async def _list_agents(self) -> list[agent_pb2.Agent]:
        found: list[agent_pb2.Agent] = []
        request = agent_pb2.ListAgentsRequest(page_size=1000)
        for _ in range(_MOST_PAGES):
            page = await self._agents.ListAgents(request)
            found += page.agents
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
        return found

    async def _ask(self, question: Callable[[], Awaitable[_T]]) -> _T | str:
        try:
            async with asyncio.timeout(scraping.PATIENCE):
                return await question()
        except grpc.aio.AioRpcError as error:
            return self._explain(error)
        except TimeoutError:
            return f"the gateway does not answer within {scraping.PATIENCE:g} seconds"


async def read_nodes(door: HttpDoor) -> list[dict[str, Any]] | str:
    """Return the nodes that a gateway lists at its HTTP door, or why it does not."""
    try:
        async with asyncio.timeout(scraping.PATIENCE):
            status, body = await scraping.get(door.address, "/v1/cluster", "application/json", door.key, door.tls)
        told = json.loads(body)
        if status != "200":
            return str(told["error"]["message"])
        return list(told["nodes"])
    except TimeoutError:
        return f"{door.address} does not answer within {scraping.PATIENCE:g} seconds"
    except OSError as error:
        return f"{door.address} cannot be asked: {error.strerror or error}; name the gateway's HTTP door with --http"
    except (ValueError, KeyError, TypeError):
        return f"what {door.address} answers is no list of nodes; name the gateway's HTTP door with --http"
