from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from agentmem import errors
from agentmem.client.answers import Growing
from agentmem.client.stream import Replay
from agentmem.v1 import agent_pb2, inference_pb2, types_pb2
from gateway.cli.chat import Shown
from gateway.cli.main import main

from ..conftest import Command
from ..scripted import ScriptedWorker, delta, finished, script, started


def agent(name: str, tokens: int = 1234) -> agent_pb2.Agent:
    described = agent_pb2.Agent(
        key=types_pb2.AgentKey(namespace="default", agent_id=name, model_id="demo"),
        version=types_pb2.AgentVersion(uid="u", version=4),
        tokens=tokens,
        turns=2,
        warm_bytes=9_437_184,
        tier=types_pb2.TIER_WARM,
    )
    described.update_time.GetCurrentTime()
    return described


async def test_agents_over_all_pages(worker: ScriptedWorker, agentmem: Command) -> None:
    worker.agents = [agent(f"agent-{number}") for number in range(5)]
    listed = await agentmem("agents")
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == ["agent", *(f"agent-{n}" for n in range(5))]
    assert "1,234" in listed.output
    assert "9.4 MB" in listed.output
    assert (await agentmem("agents", "list")).output == listed.output
    told = json.loads((await agentmem("agents", "list", "--json")).output)
    assert [one["key"]["agent_id"] for one in told] == [f"agent-{number}" for number in range(5)]
    assert told[0]["tier"] == "warm"
    assert told[0]["warm_bytes"] == 9_437_184


async def test_agents_without_a_name_are_hidden(worker: ScriptedWorker, agentmem: Command) -> None:
    anonymous = [f"conv-{number:032x}" for number in range(2)]
    worker.agents = [agent("conv-mine"), *map(agent, anonymous)]
    for arguments in ([], ["list"]):
        listed = await agentmem("agents", *arguments)
        assert [line.split()[0] for line in listed.stdout.splitlines()] == ["agent", "conv-mine"]
        assert listed.stderr == "2 agents without a name not shown; --all shows them too\n"
        told = await agentmem("agents", *arguments, "--json")
        assert [one["key"]["agent_id"] for one in json.loads(told.stdout)] == ["conv-mine"]
        everyone = await agentmem("agents", *arguments, "--all")
        assert all(name in everyone.stdout for name in anonymous) and not everyone.stderr
    worker.agents = worker.agents[1:]
    assert (await agentmem("agents")).output == "2 agents without a name not shown; --all shows them too\n"


async def test_no_agents(worker: ScriptedWorker, agentmem: Command) -> None:
    assert "no agents yet" in (await agentmem("agents")).output
    assert (await agentmem("agents", "--json")).output == "[]\n"


async def test_show(worker: ScriptedWorker, agentmem: Command) -> None:
    worker.agents = [agent("bob"), agent("eve")]
    shown = await agentmem("agents", "show", "bob")
    assert "bob" in shown.output
    assert "eve" not in shown.output
    missing = await agentmem("agents", "show", "nobody")
    assert (missing.exit_code, missing.output) == (
        1,
        "Error: agent 'nobody' does not exist; `agentmem agents --all` lists them\n",
    )


async def test_delete(worker: ScriptedWorker, agentmem: Command) -> None:
    assert (await agentmem("agents", "delete", "bob")).output == "deleted 1 memory of bob, freed 2.0 kB\n"
    assert worker.requests[-1].key.agent_id == "bob"
    assert worker.requests[-1].key.model_id == ""
    told = await agentmem("agents", "delete", "bob", "--model", "demo", "--json")
    assert json.loads(told.output) == {"deleted": 1, "freed_bytes": 2048}
    assert worker.requests[-1].key.model_id == "demo"


async def test_chat_says_what_is_new_under_the_system_message(worker: ScriptedWorker, agentmem: Command) -> None:
    said = await agentmem("chat", "bob", "--system", "be nice", "--max-tokens", "9", say="hi\n\nand now?\n")
    assert said.exit_code == 0
    assert (
        said.output.splitlines()
        == [
            "Hello 🌍",
            "EXTEND · cache hit 12/20 (60 %): hot 7, warm 5 · TTFT 0.12 s · 6.0 tokens/s",
        ]
        * 2
    )
    first, second = (request for request in worker.requests if request.DESCRIPTOR.name == "GenerateRequest")
    assert [(message.role, message.content) for message in first.messages.messages] == [
        ("system", "be nice"),
        ("user", "hi"),
    ]
    assert [message.content for message in second.messages.messages] == ["be nice", "and now?"]
    assert {first.memory_mode, second.memory_mode} == {inference_pb2.MEMORY_MODE_AUTO}
    assert (first.key.agent_id, first.key.model_id, first.max_tokens) == ("bob", "demo", 9)
    assert first.request_id != second.request_id


async def test_chat_with_one_who_is_known(worker: ScriptedWorker, agentmem: Command) -> None:
    worker.agents = [agent("bob")]
    said = await agentmem("chat", "bob", "--message", "hi", "--model", "org/large", "--json")
    told = json.loads(said.output)
    assert (told["text"], told["match"], told["cached"]) == ("Hello 🌍", "extend", {"hot": 7, "warm": 5})
    assert [message.content for message in worker.requests[-1].messages.messages] == ["hi"]
    assert worker.requests[-1].memory_mode == inference_pb2.MEMORY_MODE_APPEND
    assert worker.requests[-1].key.model_id == "org/large"
    refused = await agentmem("chat", "bob", "--message", "hi", "--system", "be rude")
    assert refused.exit_code == 1
    assert "'bob' has a memory already" in refused.output


async def test_chat_loads_its_model_first(worker: ScriptedWorker, agentmem: Command) -> None:
    words = ("chat", "bob", "--message", "hi", "--model", "org/large")
    said = await agentmem(*words)
    assert said.stderr == "loading org/large…\n" and "Hello" in said.stdout
    worker.load_error = errors.PermissionDenied("this key may not load models")
    assert "Hello" in (await agentmem(*words)).stdout, "the turn loads it"
    worker.load_error = errors.FailedPrecondition("it does not fit")
    refused = await agentmem(*words)
    assert (refused.exit_code, "it does not fit" in refused.stderr) == (1, True)
    unknown = await agentmem("chat", "bob", "--message", "hi", "--model", "other=./somewhere")
    assert unknown.exit_code == 1
    assert "has no model 'other', but demo, org/large" in unknown.stderr
    assert "`agentmem up --model other=./somewhere`" in unknown.stderr


async def test_chat_waits_for_the_worker_before_its_first_turn(worker: ScriptedWorker, agentmem: Command) -> None:
    worker.error = errors.Unavailable("the store is starting", retry_after=0.01)

    async def heal() -> None:
        while len(worker.requests) < 6:
            await asyncio.sleep(0.01)
        worker.error = None

    said, _ = await asyncio.gather(agentmem("chat", "bob", "--message", "hi"), heal())
    assert said.exit_code == 0
    assert said.stderr == "… waiting: the store is starting\n"


@pytest.mark.parametrize(
    ("again", "expected"),
    [(["half an answer", "."], "half an answer.\n"), (["another", " answer"], "half an ans\nanother answer\n")],
    ids=["replayed", "different"],
)
async def test_chat_goes_on_after_an_outage_in_mid_answer(
    worker: ScriptedWorker, agentmem: Command, again: list[str], expected: str
) -> None:
    died = errors.Unavailable("the engine died", retry_after=0.01)
    first = started(), delta("half"), delta(" an ans"), died
    worker.script = script(first, (started(), died), (started(), *map(delta, again), finished()))
    said = await agentmem("chat", "bob", "--message", "hi")
    assert said.exit_code == 0
    assert said.stdout.startswith(f"{expected}EXTEND")
    assert said.stderr == "\n… waiting: the engine died\n"
    ids = [request.request_id for request in worker.generated]
    assert (len(ids), len(set(ids))) == (3, 1)


async def test_chat_that_is_interrupted_ends_quietly(
    worker: ScriptedWorker, agentmem: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("gateway.cli.chat._lines", interrupt)
    said = await agentmem("chat", "bob")
    assert (said.exit_code, said.output) == (130, "\n")


@pytest.mark.parametrize("command", [["chat", ""], ["agents", "show", ""], ["agents", "delete", ""]])
def test_an_agent_has_a_name(command: list[str]) -> None:
    said = CliRunner().invoke(main, command)
    assert said.exit_code == 2
    assert said.output.replace("[", "").replace("]", "") == "Error: 'AGENT' must not be empty\n"


@pytest.mark.parametrize("gateway", ["foo", "foo:", ":1", "foo:bar", ""])
def test_a_gateway_has_a_port(gateway: str) -> None:
    said = CliRunner().invoke(main, ["models", "--gateway", gateway])
    assert (said.exit_code, said.output) == (2, f"Error: --gateway: {gateway!r} is not HOST:PORT\n")


async def test_errors_are_one_line(worker: ScriptedWorker, agentmem: Command) -> None:
    worker.error = errors.PermissionDenied("not yours")
    said = await agentmem("models")
    assert (said.exit_code, said.output) == (1, "Error: not yours\n")


@pytest.mark.parametrize(
    "arguments", [["agents", "trim", "a", "1"], ["models", "load", "a"], ["chat", "a", "--message", "x"]]
)
def test_no_gateway(arguments: list[str]) -> None:
    said = CliRunner().invoke(main, [*arguments, "--gateway", "127.0.0.1:1"])
    assert said.exit_code == 1
    assert said.output.startswith("Error: no gateway answers at 127.0.0.1:1; start one with `agentmem up`")
    assert said.output.count("\n") == 1


def test_a_model_has_a_name() -> None:
    said = CliRunner().invoke(main, ["chat", "--model", "=x", "--gateway", "127.0.0.1:1"])
    assert (said.exit_code, "NAME=" in said.output) == (2, True)


def written(*tellings: list[str]) -> str:
    screen: list[str] = []
    shown, replay = Shown(screen.append, screen.append), Replay()
    told = [Growing(text="".join(telling[:count])) for telling in tellings for count in range(1, len(telling) + 1)]
    for answer in told:
        for event in replay.grown(answer):
            shown.show(event)
    for event in replay.grown(Growing(text="".join(tellings[-1])), complete=True):
        shown.show(event)
    return "".join(screen)


@pytest.mark.parametrize(
    ("tellings", "expected"),
    [
        ([["Hel", "lo"], ["H", "ell", "o", " you"]], "Hello you"),
        ([["Hello"], ["Help", "!"]], "Hello\nHelp!"),
        ([["Hello\n"], ["Bye"]], "Hello\nBye"),
        ([["\x1b[2J"], ["\x1b[2J", "x"]], "\\x1b[2Jx"),
    ],
)
def test_what_is_written(tellings: list[list[str]], expected: str) -> None:
    assert written(*tellings) == expected


def test_reasoning_is_written_apart() -> None:
    screen: list[str] = []
    shown, replay = Shown(screen.append, lambda text: screen.append(f"({text})")), Replay()
    told = (("I ", ""), ("I muse.", ""), ("I muse.", "Hel"), ("I muse.", "Hello"))
    for reasoning, text in (*told, *told):
        for event in replay.grown(Growing(reasoning, text)):
            shown.show(event)
    assert "".join(screen) == "(I )(muse.)\n\nHello"
    assert shown.is_mid_line
