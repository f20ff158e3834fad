"""A reading of all sources at once: metrics pages over HTTP, models and agents over the gateway's gRPC."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from typing import Final, TypeVar

import grpc

from agentmem.addresses import parse_address
from agentmem.v1 import agent_pb2, agent_pb2_grpc, model_pb2, model_pb2_grpc
from gateway.cli.top import names
from gateway.cli.top.page import Page, PageError
from gateway.cli.top.reading import Agents, Reading, Service, Silence, latest

PATIENCE: Final = 5.0
"""Seconds that a source has to answer: a machine that is busy is not to be shown as down."""
_LARGEST_PAGE: Final = 16 * 1024 * 1024
_AGENTS_A_PAGE: Final = 1000
_MOST_PAGES: Final = 10
_SHARE: Final = 10
"""Agents are listed again after so many times as long as listing them took: that is never most of a store's work."""

_T = TypeVar("_T")


class Sources:
    """The three pages and the gateway on `channel`. `explain` says in words why an RPC failed.

    Of the agents, the `agents` that were used last are told; with 0 nobody asks for them.
    """

    def __init__(
        self,
        pages: Mapping[Service, str],
        channel: grpc.aio.Channel,
        explain: Callable[[grpc.aio.AioRpcError], str],
        agents: int,
    ) -> None:
        self._pages = pages
        self._models = model_pb2_grpc.ModelServiceStub(channel)
        self._agents = agent_pb2_grpc.AgentServiceStub(channel)
        self._explain = explain
        self._wanted = agents
        self._listed: Agents | Silence | None = None
        self._list_again = float("-inf")

    async def read(self) -> Reading:
        """A reading. Takes a little more than PATIENCE at most, and no failure of a source raises."""
        at, now = time.monotonic(), datetime.now(UTC)
        pages, models, agents = await asyncio.gather(
            asyncio.gather(*(_page(service, address) for service, address in self._pages.items())),
            self._told(self._registered),
            self._recent_agents(),
        )
        return Reading(at, now, dict(zip(self._pages, pages, strict=True)), models, agents)

    async def _registered(self) -> tuple[model_pb2.Model, ...]:
        answer = await self._models.ListModels(model_pb2.ListModelsRequest(page_size=1000))
        return tuple(answer.models)

    async def _recent_agents(self) -> Agents | Silence | None:
        began = time.monotonic()
        if self._wanted and began >= self._list_again:
            found: list[agent_pb2.Agent] = []
            listed = await self._told(lambda: self._list(found))
            silent = isinstance(listed, Silence)
            self._listed = latest(found, self._wanted, all_listed=False) if silent and found else listed
            ended = time.monotonic()
            self._list_again = ended + (1 if silent else _SHARE) * (ended - began)
        return self._listed

    async def _list(self, found: list[agent_pb2.Agent]) -> Agents:
        request = agent_pb2.ListAgentsRequest(page_size=_AGENTS_A_PAGE)
        for _ in range(_MOST_PAGES):
            page = await self._agents.ListAgents(request)
            found += page.agents
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
        return latest(found, self._wanted, all_listed=not request.page_token)

    async def _told(self, question: Callable[[], Awaitable[_T]]) -> _T | Silence:
        try:
            async with asyncio.timeout(PATIENCE):
                return await question()
        except grpc.aio.AioRpcError as error:
            return Silence(self._explain(error))
        except TimeoutError:
            return Silence(f"the gateway does not answer within {PATIENCE:g} seconds")


async def _page(service: Service, address: str) -> Page | Silence:
    """`read_page` on a thread that nobody waits for when the reading is given up.

    A thread of asyncio's executor would be: whoever presses q would wait for the prompt as long as a page hangs.
    """
    told = Future[Page | Silence]()
    told.set_running_or_notify_cancel()  # it cannot be cancelled: whoever gives up leaves it to itself

    def read() -> None:
        try:
            told.set_result(read_page(service, address))
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            told.set_exception(error)

    threading.Thread(target=read, name=f"page of the {service}", daemon=True).start()
    return await asyncio.wrap_future(told)


def read_page(service: Service, address: str) -> Page | Silence:
    """The service's metrics page at "host:port", or why it cannot be read. Blocks, at each step for PATIENCE."""
    host, port = parse_address(address)
    connection = HTTPConnection(host, port, timeout=PATIENCE)
    try:
        connection.request("GET", "/metrics", headers={"Accept": "text/plain; version=0.0.4"})
        with connection.getresponse() as answer:
            status, body = answer.status, answer.read(_LARGEST_PAGE)
        if status != 200:
            return Silence(f"{address} answers with status {status}; is that its page of metrics?")
        page = Page.parse(body.decode("utf-8"), time.monotonic())
        owners = page.values_of("service", names.BUILD)
        if owners != [service]:
            whose = f"the {owners[0]}'s page" if owners else "another program's page"
            return Silence(f"{address} has {whose}, not the {service}'s; give the address that it really has")
        return page  # noqa: TRY300
    except TimeoutError:
        return Silence(f"{address} does not answer within {PATIENCE:g} seconds")
    except ConnectionRefusedError:
        return Silence(f"nothing listens at {address}")
    except (OSError, HTTPException) as error:
        return Silence(f"{address} cannot be read: {_reason(error)}")
    except (PageError, UnicodeDecodeError) as error:
        what = error if isinstance(error, PageError) else "is no page of metrics"
        return Silence(f"what {address} answers {what}; another program may have its port")
    finally:
        connection.close()


def _reason(error: OSError | HTTPException) -> str:
    told = error.strerror if isinstance(error, OSError) else None
    return told or f"the connection broke ({type(error).__name__})"
