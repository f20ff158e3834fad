"""The clients in TypeScript, Go and C++ of deploy/examples against a running stack, through the gateway's gRPC door.

They do the same things and say the same about them, so that each test is one of all three.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
import trustme

from agentmem import errors
from gateway.edge import key_file
from gateway.edge.keys import new
from tests.gateway import running as gateways
from tests.gateway.scripted import ScriptedWorker, delta, finished, started
from tests.system.files import exported
from tests.system.languages import CPP, GO, TYPESCRIPT, Program, command, ended, shown
from tests.system.proxies import CANCEL, INTERNAL_ERROR, CuttingProxy, ResettingStreams
from tests.system.shared import of_module
from tests.system.stack import Stack
from tests.tiny_models import write_llama

pytestmark = pytest.mark.asyncio(loop_scope="module")


stack = of_module("tiny", write_llama)


@pytest.fixture(scope="module", params=[TYPESCRIPT, GO, CPP], ids=lambda language: language.name)
def client(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return command(request.param)


@pytest.fixture
def program(stack: Stack, client: tuple[str, ...]) -> Program:
    return Program(stack.grpc, *client)


@pytest.fixture
def agent(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


async def said(stack: Stack, agent: str) -> str:
    return shown((await stack.ledger(agent)).text)


@pytest.mark.slow
async def test_generates_lists_and_forks(stack: Stack, program: Program, agent: str) -> None:
    first = await program.run("generate", agent, "The boat is green.")
    assert first.out
    assert (await said(stack, agent)).endswith(first.out)
    assert re.fullmatch(r"\n\[reused 0 tokens, generated \d+, version 1\]\n", first.err)
    tokens = len((await stack.ledger(agent)).token_ids)
    second = await program.run("generate", agent, "And the house?")
    assert re.fullmatch(rf"\n\[reused {tokens} tokens, generated \d+, version 2\]\n", second.err)
    ledger = await stack.ledger(agent)
    tokens = len(ledger.token_ids)
    assert (await program.run("fork", agent, f"{agent} 2")).out == f"{agent} 2: {tokens} tokens, version 1\n"
    assert (await stack.ledger(f"{agent} 2")).token_ids == ledger.token_ids
    listed = (await program.run("list")).out.splitlines()
    assert f"{agent} 2\ttiny\t{tokens} tokens\t2 turns\twarm" in listed, "a fork is hot from its first turn on"


@pytest.mark.slow("TypeScript")
async def test_ctrl_c_cancels_the_turn(stack: Stack, program: Program, agent: str) -> None:
    await program.run("generate", agent, "The boat is green.")
    ledger = await stack.ledger(agent)
    before = await stack.metric("worker", "agentmem_requests_finished_total", reason="cancelled")
    process = await program.begin("generate", "--ignore-eos", "--max-tokens", "3000", agent, "Go on.")
    assert process.stdout is not None
    assert await process.stdout.read(1), "text comes while the turn runs"
    process.send_signal(signal.SIGINT)
    assert (await ended(process, 130)).err.startswith("CANCELLED: ")
    await stack.until_running(0)
    assert await stack.metric("worker", "agentmem_requests_finished_total", reason="cancelled") == before + 1
    assert await stack.ledger(agent) == ledger


@pytest.mark.slow
async def test_a_request_id_is_one_turn(stack: Stack, program: Program, agent: str) -> None:
    question = ("generate", "--request-id", f"{agent}-1", agent, "The boat is green.")
    first = await program.run(*question)
    ledger = await stack.ledger(agent)
    again = await program.run(*question)
    assert again.out == first.out
    assert again.err == first.err.replace("]\n", ", replayed]\n")
    assert await stack.ledger(agent) == ledger
    other = await program.run(*question[:-1], "The boat is red.", status=1)
    assert other.err.startswith("INVALID_ARGUMENT: request_id: ")
    assert " (field request_id)" in other.err
    named_anew = await program.run("generate", agent, "The boat is green.")
    assert "version 2]" in named_anew.err, "without the id it is another turn"


@pytest.mark.slow("TypeScript")
async def test_an_answer_that_is_lost_is_no_second_turn(stack: Stack, client: tuple[str, ...], agent: str) -> None:
    network = CuttingProxy(("127.0.0.1", stack.ports["grpc"]))
    program = Program(f"127.0.0.1:{network.port}", *client)
    with network.losing_answers_after(1000):
        process = await program.begin("generate", "--ignore-eos", "--max-tokens", "300", agent, "The boat is green.")
        async with asyncio.timeout(60):
            while not (ledger := await stack.ledger(agent)).token_ids:  # the client is not told of the commit
                await asyncio.sleep(0.05)
        assert process.returncode is None
    done = await ended(process)
    network.close()
    assert (await said(stack, agent)).endswith(done.out), "all of it, and nothing twice"
    lost, _, told = done.err.splitlines()
    assert lost.endswith(" (try again in 1 s); trying again")
    assert re.fullmatch(r"\[reused 0 tokens, generated 300, version 1, replayed\]", told)
    assert await stack.ledger(agent) == ledger


@pytest.mark.slow("TypeScript-cancel", "TypeScript-internal-error", "TypeScript-unknown")
@pytest.mark.parametrize(
    ("code", "status"),
    [(CANCEL, "CANCELLED"), (INTERNAL_ERROR, "INTERNAL"), (0x99, "(UNKNOWN|INTERNAL)")],
    ids=["cancel", "internal-error", "unknown"],
)
async def test_a_stream_that_is_reset_is_asked_for_again(
    stack: Stack, client: tuple[str, ...], agent: str, code: int, status: str
) -> None:
    async with ResettingStreams(stack.ports["grpc"], code) as network:
        program = Program(f"127.0.0.1:{network.port}", *client)
        done = await program.run("generate", "--ignore-eos", "--max-tokens", "300", agent, "The boat is green.")
    lost, *_, told = done.err.splitlines()
    assert re.fullmatch(rf"{status}: .*\(try again in 1 s\); trying again", lost)
    assert re.fullmatch(r"\[reused 0 tokens, generated 300, version 1(, replayed)?\]", told)
    assert (await said(stack, agent)).endswith(done.out), "all of it, and nothing twice"


@asynccontextmanager
async def scripted(client: tuple[str, ...]) -> AsyncIterator[tuple[ScriptedWorker, Program]]:
    """A worker that says what it is told to, and the client of its gateway."""
    with tempfile.TemporaryDirectory(prefix="am-", dir="/tmp") as root:
        worker = ScriptedWorker(f"{root}/worker.sock")
        await worker.start()
        try:
            async with gateways.running(Path(root)) as gateway:
                yield worker, Program(gateway.addresses["grpc"], *client, AGENTMEM_MODEL="demo")
        finally:
            await worker.stop()


@pytest.mark.slow("TypeScript")
async def test_what_the_gateway_says_is_not_tried_again(client: tuple[str, ...]) -> None:
    """The same codes as those of a connection that broke, with details."""
    failures = {errors.Internal("a bug"): 1, errors.Cancelled("it was aborted"): 130}
    async with scripted(client) as (worker, program):
        for error, status in failures.items():
            worker.error = error
            failed = await program.run("generate", "ada", "hi", status=status)
            assert failed.err == f"{error.code.name}: {error.message}\n"
    assert len(worker.generated) == len(failures)


@pytest.mark.slow("TypeScript")
async def test_moves_agents(stack: Stack, program: Program, agent: str, tmp_path: Path) -> None:
    client = await stack.client("gateway")
    await client.say(agent, "The key is in the cellar. " * 40, max_tokens=4)
    await stack.on_disk(agent)
    whole = await exported(client, agent)
    path = tmp_path / "agent"
    assert (await program.run("export", agent, str(path))).out == f"{path}: {len(whole)} bytes\n"
    assert path.read_bytes() == whole
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    told = (await program.run("import", str(path), f"{agent} 2")).out
    ledger = await stack.ledger(agent)
    tokens = len(ledger.token_ids)
    assert told == f"{agent} 2 on tiny: {tokens} tokens, {tokens} with KV\n"
    assert (await stack.ledger(f"{agent} 2")).token_ids == ledger.token_ids
    assert await asyncio.to_thread(os.listdir, tmp_path) == ["agent"]


@pytest.mark.slow
async def test_says_what_failed(stack: Stack, program: Program, agent: str, tmp_path: Path) -> None:
    client = await stack.client("gateway")
    await client.say(agent, "hello", max_tokens=2)
    path, damaged = tmp_path / "agent", tmp_path / "damaged"
    await program.run("export", agent, str(path))
    damaged.write_bytes(path.read_bytes()[:-1] + b"\x00\x00")
    absent = tmp_path / "absent"
    told = {
        ("fork", "nobody", "x"): r"NOT_FOUND: agent 'nobody' does not exist \(agent \"nobody\"\)",
        ("generate", "--max-tokens", "0", agent, "x"): r"INVALID_ARGUMENT: max_tokens: .* \(field max_tokens\)",
        ("export", "nobody", str(absent)): r"NOT_FOUND: .* \(agent \"nobody\"\)",
        ("import", str(path)): "ALREADY_EXISTS: .*",
        ("import", str(damaged), "new"): "DATA_LOSS: .*",
        ("import", str(absent), "new"): "(?i).*no such file or directory.*",
        ("export", agent, str(absent / "file")): "(?i).*no such file or directory.*",
    }
    results = await asyncio.gather(*(program.run(*arguments, status=1) for arguments in told))
    for failed, line in zip(results, told.values(), strict=True):
        assert re.fullmatch(f"{line}\n", failed.err), "one line, and not tried again"
        assert failed.out == ""
    assert sorted(await asyncio.to_thread(os.listdir, tmp_path)) == ["agent", "damaged"]
    for wrong in (
        ["nonsense"],
        [],
        ["fork", "one"],
        ["generate", "--max-tokens"],
        ["generate", "--nonsense", "a", "b"],
    ):
        assert "usage: " in (await program.run(*wrong, status=2)).err


async def test_tries_again_when_it_is_told_to(client: tuple[str, ...]) -> None:
    failures = [errors.Unavailable("the model is loading", 0.25), errors.ResourceExhausted("the queue is full", 0.5)]
    answers = iter([["He"], ["Hel"], ["Hal", "lo"]])

    async def script(request: object) -> AsyncIterator[object]:
        yield started()
        for text in next(answers):
            yield delta(text)
        if failures:
            raise failures.pop(0)
        yield finished()

    async with scripted(client) as (worker, program):
        worker.script = script  # type: ignore[assignment]
        done = await program.run("generate", "ada", "hi")
    assert done.out == "Hel\nHallo", "what came before is not written twice, and another answer begins again"
    assert done.err.splitlines()[:2] == [
        "UNAVAILABLE: the model is loading (try again in 0.25 s); trying again",
        "RESOURCE_EXHAUSTED: the queue is full (try again in 0.5 s); trying again",
    ]
    assert len(worker.generated) == 3
    (request_id,) = {request.request_id for request in worker.generated}
    told = [metadata["x-request-id"] for metadata in worker.metadata if "x-request-id" in metadata]
    assert request_id in told


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """A second gateway of a stack, with keys, TLS and certificates of clients; and the variables for it."""
    folder = tmp_path_factory.mktemp("door")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name in ("server", "client"):
        issued = ca.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    made, shown = new("default", created=datetime.now(UTC))
    with key_file.changing(folder / "keys.json") as known:
        known[made.id] = made
    files = {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.pem", "keys": "keys.json"}
    mine = {"CA": folder / "ca.pem", "CLIENT_CERT": folder / "client.pem", "CLIENT_KEY": folder / "client.key"}
    async with gateways.running(stack.run, **{name: folder / file for name, file in files.items()}) as gateway:
        variables = {f"AGENTMEM_{name}": str(file) for name, file in mine.items()}
        yield gateway.addresses["grpc"], {**variables, "AGENTMEM_API_KEY": str(shown)}


@pytest.mark.slow
async def test_keys_and_tls(
    stack: Stack, door: tuple[str, dict[str, str]], client: tuple[str, ...], agent: str
) -> None:
    address, mine = door
    program = Program(address, *client, **mine)
    answer = await program.run("generate", agent, "The boat is green.")
    assert (await said(stack, agent)).endswith(answer.out)
    assert f"{agent}\ttiny\t" in (await program.run("list")).out
    stranger = Program(address, *client, **mine | {"AGENTMEM_API_KEY": "am_0_x"})
    assert (await stranger.run("list", status=1)).err.startswith("UNAUTHENTICATED: ")
    # Without the CA, without a certificate of its own, and without TLS nothing is had. It is tried until Ctrl-C.
    key = {"AGENTMEM_API_KEY": mine["AGENTMEM_API_KEY"]}
    for variables in (mine | {"AGENTMEM_CA": "", "AGENTMEM_TLS": "1"}, key | {"AGENTMEM_CA": mine["AGENTMEM_CA"]}, key):
        process = await Program(address, *client, **variables).begin("list")
        assert process.stderr is not None
        async with asyncio.timeout(60):  # gRPC's own log may come first
            while not (line := await process.stderr.readline()).endswith(b"; trying again\n"):
                assert line, "it has ended"
        process.send_signal(signal.SIGINT)
        assert (await ended(process, 130)).out == ""
