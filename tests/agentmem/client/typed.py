"""Types as checkers see the client: checked by test_types.py, and never run."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal, assert_type

from agentmem import (
    Agent,
    AgentInfo,
    Answer,
    AnswerChanged,
    AsyncAgent,
    AsyncClient,
    AsyncStream,
    Client,
    ClientTls,
    Erased,
    Imported,
    LoadStep,
    Memory,
    Message,
    Model,
    Prefetched,
    Probe,
    Snapshot,
    Stream,
    TokenCount,
    ToolCall,
    ToolChoice,
    Turn,
    Version,
    Workflow,
)
from agentmem.client.answers import Event, FinishReason
from agentmem.client.workflows import RunEvent
from agentmem.v1 import workflow_pb2


def blocking() -> None:
    with Client("host:50051", key="k", tls=ClientTls(ca=b""), timeout=3, patience=1, on_outage=print) as client:
        marco = client.agent("marco", system="You are Marco.", ttl=60)
        assert_type(marco, Agent)
        assert_type(marco.name, str)
        assert_type(marco.model(), str)
        said_blocking(marco)
        assert_type(marco.fork("ada", keep_tokens=3), Agent)
        assert_type(marco.info(timeout=3), AgentInfo)
        assert_type(marco.exists(), bool)
        assert_type(marco.messages(), list[Message])
        assert_type(marco.turns(text=True), Iterator[Turn])
        assert_type(marco.snapshot("one"), Snapshot)
        assert_type(marco.snapshots(), Iterator[Snapshot])
        assert_type(marco.restore("one"), AgentInfo)
        marco.delete_snapshot("one")
        assert_type(marco.trim(3, only_if=marco.info().version), AgentInfo)
        assert_type(marco.delete(missing_ok=True), Erased)
        assert_type(marco.pin(), AgentInfo)
        assert_type(marco.set_ttl(3, delete_after=4), AgentInfo)
        assert_type(marco.set_context_policy("trim"), AgentInfo)
        assert_type(marco.probe("Hi"), Probe)
        assert_type(marco.count_tokens("Hi"), TokenCount)
        assert_type(marco.prefetch(), Prefetched)
        assert_type(marco.evict("warm"), int)
        assert_type(marco.export("file"), int)
        assert_type(client.agents(model="demo"), Iterator[AgentInfo])
        assert_type(client.import_agent("file", name="leo"), Imported)
        assert_type(client.count_tokens("Hi"), TokenCount)
        client.hint({"marco": 1, "ada": None})
        assert_type(client.abort("id"), bool)
        assert_type(client.models.get(), Model)
        assert_type(client.models.list(), Iterator[Model])
        assert_type(client.models.loading("demo"), Iterator[LoadStep])
        assert_type(client.models.load("demo"), Model)
        assert_type(client.models.unload("demo"), int)
        assert_type(client.workflows.run("text", variables={"a": "b"}), Workflow)
        assert_type(client.workflows.stream("text", request_id="r"), Iterator[RunEvent])
        for event in client.workflows.follow("id"):
            if isinstance(event, workflow_pb2.AgentSpoke):
                assert_type(event.text, str)
        assert_type(client.workflows.get("id"), Workflow)
        assert_type(client.workflows.list(), Iterator[Workflow])
        assert_type(client.workflows.cancel("id"), Workflow)
        client.workflows.delete("id")
    client.close()


def said_blocking(marco: Agent) -> None:
    answer = marco.ask("Hi", max_tokens=3, temperature=0.5, timeout=None)
    assert_type(answer, Answer)
    assert_type(answer.version, Version | None)
    assert_type(answer.finish_reason, FinishReason)
    assert_type(answer.memory.match, Literal["new", "exact", "extend", "partial", "diverge", ""])
    assert_type(answer.tool_calls, tuple[ToolCall, ...])
    assert_type(answer.tool_calls[0].arguments, dict[str, Any])
    assert_type(answer.raw[1].usage.prompt_tokens, int)
    assert_type(marco.tell([Message("user", "Hi"), {"role": "user", "content": "Ho"}], label="l"), Answer)
    marco.ask("Hi", tools=[{"type": "function"}], tool_choice=ToolChoice(required=True), json_schema={"type": "object"})
    with marco.stream("Hi", stop=["\n"]) as stream:
        assert_type(stream, Stream)
        for piece in stream:
            assert_type(piece, str)
        assert_type(stream.answer, Answer)
        assert_type(stream.memory, Memory | None)
        assert_type(stream.events(), Iterator[Event])
        try:
            assert_type(stream.finish(), Answer)
        except AnswerChanged as changed:
            assert_type(changed.answer, Answer)
    stream.close()


async def asynchronous() -> None:
    async with AsyncClient(timeout=3) as client:
        marco = client.agent("marco")
        assert_type(marco, AsyncAgent)
        assert_type(await marco.ask("Hi", max_tokens=3), Answer)
        async with marco.stream("Hi") as stream:
            assert_type(stream, AsyncStream)
            async for piece in stream:
                assert_type(piece, str)
            async for event in stream.events():
                assert_type(event, Event)
            assert_type(await stream.finish(), Answer)
        assert_type(await marco.fork("ada"), AsyncAgent)
        assert_type(marco.turns(), AsyncIterator[Turn])
        assert_type([message.content for message in await marco.messages()], list[str])
        assert_type(client.agents(), AsyncIterator[AgentInfo])
        assert_type(await client.import_agent("file"), Imported)
        assert_type(client.models.loading("demo"), AsyncIterator[LoadStep])
        assert_type(await client.workflows.run("text"), Workflow)
        assert_type(client.workflows.follow("id"), AsyncIterator[RunEvent])


def refused(client: Client) -> None:
    marco = client.agent("marco")
    marco.ask("Hi", max_tokens="3")  # type: ignore[arg-type]
    marco.ask("Hi", max_token=3)  # type: ignore[call-arg]
    marco.ask()  # type: ignore[call-arg]
    marco.tell("Hi", temperature=1)  # type: ignore[call-arg]
    marco.evict("cold")  # type: ignore[arg-type]
    marco.fork("ada", at="1")  # type: ignore[arg-type]
    client.agent("marco", context_policy="forget")  # type: ignore[arg-type]
    client.models.get().name = "x"  # type: ignore[misc]
