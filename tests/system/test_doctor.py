import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.system.stack import Stack


def names(data: Path) -> dict[str, int]:
    """Files and their sizes, but for SQLite's, which it keeps as it likes."""
    files = (path for path in data.rglob("*") if not path.name.startswith(("store.db-", "warm.db-")))
    return {str(path): path.stat().st_size for path in files if path.is_file()}


@pytest.mark.slow
async def test_while_all_runs(stack: Stack) -> None:
    await stack.renew("gateway")
    client = await stack.client("gateway")
    assert (await client.say("ada", "hello")).finished.durable
    await stack.on_disk("ada")
    before = names(stack.data)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli.main", "doctor", "--json"),
        *("--data", str(stack.data), "--run-dir", str(stack.run), "--http", f"127.0.0.1:{stack.ports['http']}"),
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    assert names(stack.data) == before
    found = {each["check"]: each for each in json.loads(told)["findings"]}
    assert process.returncode == 0, found
    assert found["running"]["facts"] == dict.fromkeys(("store", "worker", "gateway"), "ready")
    assert "services run here" in found["ports"]["found"]
    assert "besides a worker that runs" in found["memory"]["found"]
    assert (await client.say("ada", "again")).finished.durable
