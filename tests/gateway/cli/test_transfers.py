from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from agentmem import errors
from agentmem.v1 import agent_pb2, types_pb2

from ..conftest import Command
from ..scripted import ScriptedWorker
from .test_commands import agent


async def test_export(worker: ScriptedWorker, agentmem: Command, tmp_path: Path) -> None:
    worker.agents = [agent("bob"), agent("eve")]
    file = tmp_path / "bob.agent"
    done = await agentmem("agents", "export", "bob", str(file))
    assert (done.exit_code, done.output) == (0, f"exported bob to {file}, 6 B\n")
    assert file.read_bytes() == b"onetwo"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]
    request = worker.requests[-1]
    assert (request.key.agent_id, request.key.model_id, request.key.namespace) == ("bob", "demo", "default")
    told = await agentmem("agents", "export", "bob", str(file), "--force", "--json")
    assert json.loads(told.output) == {"file": str(file), "bytes": 6}


async def test_export_spares_what_is_there(worker: ScriptedWorker, agentmem: Command, tmp_path: Path) -> None:
    worker.agents = [agent("bob")]
    file = tmp_path / "bob.agent"
    file.write_bytes(b"mine")
    refused = await agentmem("agents", "export", "bob", str(file))
    assert refused.exit_code == 1 and "--force" in refused.output
    worker.error = errors.FailedPrecondition("the worker says no")
    failed = await agentmem("agents", "export", "bob", str(file), "--force")
    assert failed.exit_code == 1 and "the worker says no" in failed.output
    assert file.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [file]
    nowhere = await agentmem("agents", "export", "bob", str(tmp_path / "no" / "file"))
    assert nowhere.exit_code == 1 and "cannot write" in nowhere.output


async def test_export_of_an_agent_on_several_models(worker: ScriptedWorker, agentmem: Command, tmp_path: Path) -> None:
    missing = await agentmem("agents", "export", "bob", str(tmp_path / "x"))
    assert (missing.exit_code, missing.output) == (
        1,
        "Error: agent 'bob' does not exist; `agentmem agents --all` lists them\n",
    )
    other = agent("bob")
    other.key.model_id = "org/large"
    worker.agents = [agent("bob"), other]
    refused = await agentmem("agents", "export", "bob", str(tmp_path / "x"))
    assert refused.output == "Error: bob has memories on demo, org/large; name one with --model\n"


@pytest.mark.parametrize("size", [0, 5, 256 * 1024, 600_000])
async def test_import(worker: ScriptedWorker, agentmem: Command, tmp_path: Path, size: int) -> None:
    file = tmp_path / "bob.agent"
    file.write_bytes(bytes(i % 251 for i in range(size)))
    done = await agentmem("agents", "import", str(file), "lena", "--model", "demo")
    assert done.exit_code == 0, done.output
    first, *chunks = [request for request in worker.requests if isinstance(request, agent_pb2.ImportAgentRequest)]
    assert first.key == types_pb2.AgentKey(namespace="default", agent_id="lena", model_id="demo")
    assert b"".join(chunk.chunk for chunk in chunks) == file.read_bytes()
    assert all(0 < len(chunk.chunk) <= 256 * 1024 for chunk in chunks)


async def test_import_as_in_the_file(worker: ScriptedWorker, agentmem: Command, tmp_path: Path) -> None:
    file = tmp_path / "bob.agent"
    file.write_bytes(b"x")
    told = await agentmem("agents", "import", str(file), "--json")
    assert json.loads(told.output).keys() == {"agent_id", "model_id", "tokens", "warm_tokens", "kv_misfit"}
    assert worker.requests[0].key == types_pb2.AgentKey(namespace="default")
    worker.error = errors.DataLoss("the file is damaged: it ends too early; export the agent again")
    refused = await agentmem("agents", "import", str(file))
    assert (refused.exit_code, "export the agent again" in refused.output) == (1, True)


async def test_only_a_file_that_can_be_read_again_is_sent_again(
    worker: ScriptedWorker, agentmem: Command, tmp_path: Path
) -> None:
    """The rest of a pipe would be a damaged file, or another agent's."""

    async def refused_once(path: str) -> tuple[int, int]:
        worker.requests.clear()
        worker.error = errors.Unavailable("the worker is draining", retry_after=0.2)

        async def heal() -> None:
            while len(worker.requests) < 2:  # the key, and what the file holds
                await asyncio.sleep(0.01)
            worker.error = None

        done, _ = await asyncio.gather(agentmem("agents", "import", path), heal())
        return done.exit_code, sum(request.HasField("key") for request in worker.requests)

    file = tmp_path / "bob.agent"
    file.write_bytes(b"bob")
    assert await refused_once(str(file)) == (0, 2)
    reading, writing = os.pipe()
    os.write(writing, b"bob")
    os.close(writing)
    try:
        assert await refused_once(f"/dev/fd/{reading}") == (1, 1)
    finally:
        os.close(reading)
