"""The clients of deploy/examples against a running stack, through the gateway's gRPC door."""

import asyncio
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from agentmem import errors
from agentmem.v1 import agent_pb2
from tests.gateway.scripted import ScriptedWorker, delta, finished, started
from tests.system.stack import Stack, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples"
OLDEST_NODE = 18


class Ended(NamedTuple):
    """What a client wrote, and its exit status."""

    out: str
    err: str
    status: int


class Program:
    """A client's command line, against one address."""

    def __init__(self, address: str, *command: str) -> None:
        self._command = command
        given = {"AGENTMEM_ADDRESS": address, "AGENTMEM_PROTOS": str(ROOT / "protos"), "AGENTMEM_MODEL": "tiny"}
        self.environment = {**os.environ, **given}

    async def begin(self, *arguments: str) -> asyncio.subprocess.Process:
        """Run it without waiting."""
        return await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
        )

    async def run(self, *arguments: str, status: int = 0) -> Ended:
        """Run it to its end, which must have this exit status."""
        process = await self.begin(*arguments)
        out, err = await process.communicate()
        assert process.returncode == status, err.decode()
        return Ended(out.decode(), err.decode(), status)


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Node.js example in a folder of its own, with its packages."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        missing(f"needs Node.js {OLDEST_NODE} or newer with npm")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        missing(f"needs Node.js {OLDEST_NODE} or newer, and this is {version}")
    folder = tmp_path_factory.mktemp("node") / "client"
    shutil.copytree(EXAMPLES / "node", folder, ignore=shutil.ignore_patterns("node_modules"))
    install = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(folder.parent / "cache")]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        missing(f"npm ci failed: {done.stderr[-500:]}")
    return folder


def missing(what: str) -> None:
    """Skip, and say what for; fail where all has to be there."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"the Node.js client {what}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tiny: Path) -> AsyncIterator[Stack]:
    """One for all of these tests; each has agents of its own."""
    async with running(f"tiny={tiny}") as stack:
        await stack.up("gateway")
        yield stack


def address(stack: Stack) -> str:
    return f"127.0.0.1:{stack.ports['grpc']}"


@pytest.fixture(scope="module")
def node(stack: Stack, node_client: Path) -> Program:
    return Program(address(stack), "node", str(node_client / "agentmem.js"), "--model", "tiny", "--max-tokens", "12")


@pytest.fixture(scope="module")
def python(stack: Stack) -> Program:
    return Program(address(stack), sys.executable, str(EXAMPLES / "python" / "agentmem_client.py"))


async def exported(stack: Stack, agent: str) -> bytes:
    """The agent's file, when all of its KV is on disk."""
    await stack.on_disk(agent)
    client = await stack.client("gateway")
    call = client.agents.ExportAgent(agent_pb2.ExportAgentRequest(key=client.key(agent)))
    return b"".join([piece.chunk async for piece in call])


async def test_node_generates_lists_and_forks(stack: Stack, node: Program) -> None:
    first = await node.run("generate", "ada", "The boat is green.")
    ledger = await stack.ledger("ada")
    assert first.out
    assert ledger.text.decode(errors="replace").removesuffix("<|im_end|>").endswith(first.out)
    assert re.fullmatch(r"\n\[reused: nothing; \d+ generated; version 1\]\n", first.err)
    second = await node.run("generate", "ada", "And the house?")
    assert f"[reused: {len(ledger.token_ids)} tokens TIER_HOT; " in second.err
    assert second.err.endswith("version 2]\n")
    tokens = len((await stack.ledger("ada")).token_ids)
    assert (await node.run("fork", "ada", "grace")).out == f"grace: {tokens} tokens, version 1\n"
    assert (await stack.ledger("grace")).token_ids == (await stack.ledger("ada")).token_ids
    listed = (await node.run("list")).out.splitlines()
    assert f"grace\ttiny\t{tokens} tokens\t2 turns\tTIER_HOT" in listed


async def test_node_cancels_in_the_middle(stack: Stack, node: Program) -> None:
    await node.run("generate", "carl", "The boat is green.")
    ledger = await stack.ledger("carl")
    before = await stack.metric("worker", "agentmem_requests_finished_total", reason="cancelled")
    process = await node.begin("generate", "carl", "Go on.", "--ignore-eos", "--max-tokens", "3000")
    assert process.stdout is not None
    assert await process.stdout.read(1), "text comes while the turn runs"
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == 130, err
    assert err.decode().startswith("CANCELLED")
    async with asyncio.timeout(20):
        while await stack.metric("worker", "agentmem_num_requests_running"):
            await asyncio.sleep(0.02)
    assert await stack.metric("worker", "agentmem_requests_finished_total", reason="cancelled") == before + 1
    assert await stack.ledger("carl") == ledger


async def test_both_clients_move_agents(stack: Stack, node: Program, python: Program, tmp_path: Path) -> None:
    client = await stack.client("gateway")
    await client.say("mia", "The key is in the cellar. " * 40, max_tokens=4)
    whole = await exported(stack, "mia")
    ledger = await stack.ledger("mia")
    for name, program in (("node", node), ("python", python)):
        path = tmp_path / name
        await program.run("export", "mia", str(path))
        assert path.read_bytes() == whole
        said = (await program.run("import", str(path), f"by {name}")).out
        assert said.startswith(f"by {name} on tiny: {len(ledger.token_ids)} tokens")
        assert (await stack.ledger(f"by {name}")).token_ids == ledger.token_ids
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_python_generates_lists_and_forks(stack: Stack, python: Program) -> None:
    first = await python.run("generate", "pia", "The boat is green.")
    ledger = await stack.ledger("pia")
    assert ledger.text.decode(errors="replace").removesuffix("<|im_end|>").endswith(first.out)
    assert first.err == "\n[0 tokens from memory; version 1]\n"
    assert (await python.run("fork", "pia", "pit")).out == f"pit: {len(ledger.token_ids)} tokens, version 1\n"
    assert f"pit\ttiny\t{len(ledger.token_ids)} tokens" in (await python.run("list")).out.splitlines()
    failed = await python.run("fork", "nobody", "x", status=1)
    assert failed.err.startswith("NOT_FOUND: agent 'nobody'")


async def test_node_says_what_failed(stack: Stack, node: Program, tmp_path: Path) -> None:
    client = await stack.client("gateway")
    await client.say("eve", "hello", max_tokens=2)
    path = tmp_path / "eve"
    path.write_bytes(await exported(stack, "eve"))
    damaged = tmp_path / "damaged"
    damaged.write_bytes(path.read_bytes()[:-1] + b"\x00\x00")
    told = {
        ("fork", "nobody", "x"): "NOT_FOUND: agent 'nobody' does not exist",
        ("generate", "eve", "x", "--max-tokens", "0"): "INVALID_ARGUMENT: max_tokens: ",
        ("export", "nobody", str(tmp_path / "none")): "NOT_FOUND: ",
        ("import", str(path)): "ALREADY_EXISTS: ",
        ("import", str(damaged), "new"): "DATA_LOSS: ",
        ("import", str(tmp_path / "absent"), "new"): "ENOENT: ",
    }
    results = await asyncio.gather(*(node.run(*arguments, status=1) for arguments in told))
    for failed, beginning in zip(results, told.values(), strict=True):
        assert failed.err.startswith(beginning)
        assert failed.err.count("\n") == 1, "one line, and not tried again"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["damaged", "eve"]
    assert (await node.run("nonsense", status=2)).err.startswith("usage: ")


async def test_node_tries_again_when_it_is_told_to(node_client: Path) -> None:
    root = Path("/tmp") / f"am-{os.getpid()}-scripted"
    root.mkdir()
    worker = ScriptedWorker(f"{root}/s.sock")
    failures = [errors.Unavailable("the model is loading", 0.25), errors.ResourceExhausted("the queue is full", 0.5)]

    async def script(request: object) -> AsyncIterator[object]:
        yield started()
        yield delta("He")
        if failures:
            raise failures.pop(0)
        yield delta("llo")
        yield finished()

    worker.script = script  # type: ignore[assignment]
    await worker.start()
    try:
        node = Program(worker.target, "node", str(node_client / "agentmem.js"))
        node.environment["AGENTMEM_API_KEY"] = "secret"
        ended = await node.run("generate", "ada", "hi")
    finally:
        await worker.stop()
        shutil.rmtree(root)
    assert ended.out == "HeHeHello"
    assert ended.err.splitlines()[:2] == [
        "UNAVAILABLE: the model is loading (try again in 0.25 s); trying again",
        "RESOURCE_EXHAUSTED: the queue is full (try again in 0.5 s); trying again",
    ]
    (request_id,) = {request.request_id for request in worker.requests}
    assert request_id
    assert len(worker.requests) == 3
    for metadata in worker.metadata:
        assert (metadata["x-request-id"], metadata["authorization"]) == (request_id, "Bearer secret")


class Line(NamedTuple):
    """A grpcurl command of the README: `verb` is list, describe or empty, `symbol` what it names."""

    body: str
    verb: str
    symbol: str
    headers: tuple[str, ...]


def grpcurl_lines() -> list[Line]:
    blocks = re.findall(r"```sh\n(.*?)```", (EXAMPLES / "grpcurl" / "README.md").read_text(), re.DOTALL)
    script = "\n".join(blocks).replace("\\\n", " ")
    return [_line(shlex.split(command)) for command in re.split(r"^grpcurl ", script, flags=re.MULTILINE)[1:]]


def _line(words: list[str]) -> Line:
    body, headers, names, rest = "{}", list[str](), list[str](), iter(words)
    for word in rest:
        match word:
            case "-plaintext":
                pass
            case "-d":
                body = next(rest)
            case "-H":
                headers.append(next(rest))
            case "-cacert" | "-cert" | "-key":
                next(rest)
            case _:
                assert not word.startswith("-"), "an option that this test does not know"
                names.append(word)
    assert names[0].endswith(":50051")
    verb = names[1] if names[1] in ("list", "describe") else ""
    symbol = names[-1] if len(names) > 1 + bool(verb) else ""
    return Line(body, verb, symbol, tuple(headers))


async def test_grpcurl_lines_are_right(stack: Stack) -> None:
    """grpcurl is not at hand, so its lines are done as it does them: by reflection, from the JSON of the line."""
    client = await stack.client("gateway")
    lines, called = grpcurl_lines(), []
    sync_channel = grpc.insecure_channel(address(stack))
    database = ProtoReflectionDescriptorDatabase(sync_channel)
    try:
        served = await asyncio.to_thread(database.get_services)
        assert "agentmem.v1.InferenceService" in served
        pool = DescriptorPool(database)
        for line in lines:
            if line.verb:
                assert line.symbol in ("", *served) or await asyncio.to_thread(pool.FindMessageTypeByName, line.symbol)
                continue
            service, _, name = line.symbol.partition("/")
            method = (await asyncio.to_thread(pool.FindServiceByName, service)).methods_by_name[name]
            request = json_format.Parse(line.body.replace('"demo"', '"tiny"'), GetMessageClass(method.input_type)())
            await _call(client.channel, line.symbol, method, request)
            called.append(name)
    finally:
        await asyncio.to_thread(sync_channel.close)
    assert len(lines) >= 10
    assert {"Check", "GetAgent", "ListAgents", "Generate", "DeleteAgent"} <= set(called)
    assert any(header.startswith("authorization: Bearer ") for line in lines for header in line.headers)


async def _call(channel: grpc.aio.Channel, path: str, method: Any, request: Any) -> None:
    connect: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
    call = connect(f"/{path}", type(request).SerializeToString, GetMessageClass(method.output_type).FromString)(request)
    assert [answer async for answer in call] if method.server_streaming else await call is not None
