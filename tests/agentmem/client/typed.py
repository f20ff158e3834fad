"""What a type checker sees of the client: checked by test_types.py, and never run."""

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from agentmem import (
    Agent,
    AgentInfo,
    Answer,
    AsyncAgent,
    AsyncClient,
    AsyncStream,
    Client,
    Message,
    Model,
    Probe,
    Snapshot,
    Stream,
    Turn,
    Version,
    Workflow,
)
from agentmem.client.answers import Event


def blocking(client: Client) -> None:
    marco = client.agent("marco", system="You are Marco.", ttl=60)
    assert_type(marco, Agent)
    answer = marco.ask("Hi", max_tokens=3, temperature=0.5, timeout=None)
    assert_type(answer, Answer)
    assert_type(answer.version, Version | None)
    assert_type(marco.tell([Message("user", "Hi")]), Answer)
    stream = marco.stream("Hi", stop=["\n"])
    assert_type(stream, Stream)
    assert_type(stream.answer, Answer)
    for piece in stream:
        assert_type(piece, str)
    assert_type(stream.events(), Iterator[Event])
    assert_type(marco.fork("ada", keep_tokens=3), Agent)
    assert_type(marco.info(timeout=3), AgentInfo)
    assert_type(marco.messages(), list[Message])
    assert_type(marco.turns(text=True), Iterator[Turn])
    assert_type(marco.snapshots(), Iterator[Snapshot])
    assert_type(marco.probe("Hi"), Probe)
    assert_type(marco.export("file"), int)
    assert_type(client.agents(model="demo"), Iterator[AgentInfo])
    assert_type(client.models.get(), Model)
    assert_type(client.models.list(), Iterator[Model])
    assert_type(client.workflows.run("text", variables={"a": "b"}), Workflow)
    assert_type(client.abort("id"), bool)


async def asynchronous(client: AsyncClient) -> None:
    marco = client.agent("marco")
    assert_type(marco, AsyncAgent)
    assert_type(await marco.ask("Hi", max_tokens=3), Answer)
    stream = marco.stream("Hi")
    assert_type(stream, AsyncStream)
    async for piece in stream:
        assert_type(piece, str)
    assert_type(await marco.fork("ada"), AsyncAgent)
    assert_type(marco.turns(), AsyncIterator[Turn])
    assert_type(client.agents(), AsyncIterator[AgentInfo])


def refused(client: Client) -> None:
    marco = client.agent("marco")
    marco.ask("Hi", max_tokens="3")  # type: ignore[arg-type]
    marco.ask("Hi", max_token=3)  # type: ignore[call-arg]
    marco.ask()  # type: ignore[call-arg]
    marco.tell("Hi", temperature=1)  # type: ignore[call-arg]
    marco.evict("cold")  # type: ignore[arg-type]
    marco.fork("ada", at="1")  # type: ignore[arg-type]
    client.agent("marco", context_policy="forget")  # type: ignore[arg-type]
