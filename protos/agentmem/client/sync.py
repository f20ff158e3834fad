"""The client for programs without an event loop: the same methods, which block. Any threads may share it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from agentmem.channels import ClientTls
from agentmem.client.agent import AsyncAgent
from agentmem.client.aio import AsyncClient
from agentmem.client.answers import Answer, Memory
from agentmem.client.blocking import Blocking, Closed, LoopThread, blocking, iterating, wrapping
from agentmem.client.connection import PATIENCE, OnOutage
from agentmem.client.models import AsyncModels
from agentmem.client.stream import AsyncStream
from agentmem.client.workflows import AsyncWorkflows
from agentmem.errors import Cancelled


class Stream(Blocking[AsyncStream]):
    """An answer as it comes; see AsyncStream."""

    @property
    def answer(self) -> Answer:
        """Raises RuntimeError before the stream has ended."""
        return self._wrapped.answer

    @property
    def memory(self) -> Memory | None:
        """The reused memory; None before it is known."""
        return self._wrapped.memory

    def __iter__(self) -> Iterator[str]:
        """Yield the text, none of it twice. Raises AnswerChanged, and AgentmemError."""
        return self._pieces()

    _pieces = iterating(AsyncStream.__aiter__)
    events = iterating(AsyncStream.events)
    finish = blocking(AsyncStream.finish)

    def close(self) -> None:
        """Cancel the turn, unless it has ended. Readers get Cancelled."""
        with suppress(Closed):  # with the client its turns have ended
            self._loop.run(self._wrapped.close())

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Agent(Blocking[AsyncAgent]):
    """An agent, by its name, on a model; see AsyncAgent."""

    @property
    def name(self) -> str:
        return self._wrapped.name

    model = blocking(AsyncAgent.model)

    ask = blocking(AsyncAgent.ask)
    stream = wrapping(AsyncAgent.stream, Stream)
    tell = blocking(AsyncAgent.tell)
    probe = blocking(AsyncAgent.probe)
    count_tokens = blocking(AsyncAgent.count_tokens)

    info = blocking(AsyncAgent.info)
    exists = blocking(AsyncAgent.exists)
    turns = iterating(AsyncAgent.turns)
    messages = blocking(AsyncAgent.messages)

    fork = wrapping(AsyncAgent.fork, lambda wrapped, loop: Agent(wrapped, loop))
    snapshot = blocking(AsyncAgent.snapshot)
    snapshots = iterating(AsyncAgent.snapshots)
    restore = blocking(AsyncAgent.restore)
    delete_snapshot = blocking(AsyncAgent.delete_snapshot)
    trim = blocking(AsyncAgent.trim)
    delete = blocking(AsyncAgent.delete)

    pin = blocking(AsyncAgent.pin)
    set_ttl = blocking(AsyncAgent.set_ttl)
    set_context_policy = blocking(AsyncAgent.set_context_policy)
    prefetch = blocking(AsyncAgent.prefetch)
    evict = blocking(AsyncAgent.evict)
    export = blocking(AsyncAgent.export)


class Models(Blocking[AsyncModels]):
    """The models of the gateway's worker."""

    list = iterating(AsyncModels.list)
    get = blocking(AsyncModels.get)
    loading = iterating(AsyncModels.loading)
    load = blocking(AsyncModels.load)
    unload = blocking(AsyncModels.unload)


class Workflows(Blocking[AsyncWorkflows]):
    """Runs of workflows."""

    run = blocking(AsyncWorkflows.run)
    stream = iterating(AsyncWorkflows.stream)
    follow = iterating(AsyncWorkflows.follow)
    get = blocking(AsyncWorkflows.get)
    list = iterating(AsyncWorkflows.list)
    cancel = blocking(AsyncWorkflows.cancel)
    delete = blocking(AsyncWorkflows.delete)


class Client(Blocking[AsyncClient]):
    """A client of one gateway; `with` closes it. It and its agents may be shared by threads. Ctrl-C also ends the call
    at the server. The parameters, and their defaults:

    gateway     "HOST:PORT" of its gRPC server; AGENTMEM_ADDRESS, or 127.0.0.1:50051
    key         the key to send; AGENTMEM_API_KEY
    tls         True, False, or a ClientTls; AGENTMEM_TLS, AGENTMEM_CA, AGENTMEM_CLIENT_CERT, AGENTMEM_CLIENT_KEY
    timeout     seconds that a call may take, outages included; no limit
    patience    seconds for which calls are retried during an outage; not where no gateway has answered yet
    on_outage   called with the reason of each outage, on the client's thread; by default it is logged

    Raises InvalidArgument for an invalid key, OSError for TLS files.

    >>> with Client() as client:
    ...     marco = client.agent("marco", system="You are Marco.")
    ...     marco.ask("Hello.").text
    'Hello.'
    """

    def __init__(
        self,
        gateway: str = "",
        *,
        key: str | None = None,
        tls: bool | ClientTls | None = None,
        timeout: float | None = None,
        patience: float = PATIENCE,
        on_outage: OnOutage | None = None,
    ) -> None:
        wrapped = AsyncClient(gateway, key=key, tls=tls, timeout=timeout, patience=patience, on_outage=on_outage)
        super().__init__(wrapped, LoopThread())
        self.models = Models(wrapped.models, self._loop)
        self.workflows = Workflows(wrapped.workflows, self._loop)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Other threads' calls raise Cancelled."""
        with suppress(Closed, Cancelled):  # another thread closes it, too
            self._loop.run(self._wrapped.close())
        self._loop.close()

    agent = wrapping(AsyncClient.agent, Agent)
    agents = iterating(AsyncClient.agents)
    import_agent = blocking(AsyncClient.import_agent)
    count_tokens = blocking(AsyncClient.count_tokens)
    hint = blocking(AsyncClient.hint)
    abort = blocking(AsyncClient.abort)
