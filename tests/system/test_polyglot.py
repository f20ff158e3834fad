"""The client in Python and the grpcurl lines of deploy/examples, through the gateway's gRPC door.

The clients in other languages: test_languages.py.
"""

import asyncio
import re
import shlex
import stat
import sys
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.system.files import exported
from tests.system.languages import EXAMPLES, Program, shown
from tests.system.shared import of_module
from tests.system.stack import Stack
from tests.tiny_models import write_llama

pytestmark = pytest.mark.asyncio(loop_scope="module")


stack = of_module("tiny", write_llama)


@pytest.fixture(scope="module")
def python(stack: Stack) -> Program:
    return Program(stack.grpc, sys.executable, str(EXAMPLES / "python" / "agentmem_client.py"))


async def test_python_moves_agents(stack: Stack, python: Program, tmp_path: Path) -> None:
    client = await stack.client("gateway")
    await client.say("mia", "The key is in the cellar. " * 40, max_tokens=4)
    await stack.on_disk("mia")
    whole = await exported(client, "mia")
    ledger = await stack.ledger("mia")
    path = tmp_path / "mia"
    await python.run("export", "mia", str(path))
    assert path.read_bytes() == whole
    said = (await python.run("import", str(path), "leo")).out
    assert said.startswith(f"leo on tiny: {len(ledger.token_ids)} tokens")
    assert (await stack.ledger("leo")).token_ids == ledger.token_ids
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.slow
async def test_python_generates_lists_and_forks(stack: Stack, python: Program) -> None:
    first = await python.run("generate", "pia", "The boat is green.")
    ledger = await stack.ledger("pia")
    assert shown(ledger.text).endswith(first.out)
    assert first.err == "\n[0 tokens from memory; version 1]\n"
    assert (await python.run("fork", "pia", "pit")).out == f"pit: {len(ledger.token_ids)} tokens, version 1\n"
    assert f"pit\ttiny\t{len(ledger.token_ids)} tokens" in (await python.run("list")).out.splitlines()
    failed = await python.run("fork", "nobody", "x", status=1)
    assert failed.err.startswith("NOT_FOUND: agent 'nobody'")


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
    sync_channel = grpc.insecure_channel(stack.grpc)
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
