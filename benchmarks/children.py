"""A process of a benchmark's own that is asked line by line: a JSON object on stdin, its answer on stdout."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from gateway.cli.up.openblas import preload_here

_LIMIT = 64 << 20


class Child:
    def __init__(self, process: asyncio.subprocess.Process, module: str) -> None:
        self._process = process
        self._module = module
        self.pid = process.pid

    async def ask(self, **asked: Any) -> Any:
        """Raises RuntimeError where the process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(ConnectionError):  # It ended since the last question.
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            await self._process.stdin.drain()
        if not (line := await self._process.stdout.readline()):
            raise RuntimeError(f"{self._module} ended with {await self._process.wait()}; see its error above")
        return json.loads(line)


@asynccontextmanager
async def started(
    module: str, *arguments: str, computes: bool = True, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(preload_here().environment if computes else {}), **(environment or {})},
        limit=_LIMIT,
    )
    try:
        yield Child(process, module)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def answer(answers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer questions until stdin ends: "do" names the function, the rest are its arguments."""
    for line in sys.stdin:
        asked = json.loads(line)
        found = answers[asked.pop("do")](**asked)
        print(json.dumps(found), flush=True)
