"""An agent as a file, put in place when complete, readable by its owner alone."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, Final, TypeAlias

from agentmem.durable import sync, sync_directory
from agentmem.v1 import agent_pb2, types_pb2

CHUNK_BYTES: Final = 256 * 1024

Target: TypeAlias = str | os.PathLike[str] | IO[bytes]
"""A path, or a file that is open for bytes."""


@asynccontextmanager
async def written(target: Target) -> AsyncIterator[IO[bytes]]:
    """Yield a file that replaces the target if the block succeeds. Raises OSError."""
    if not isinstance(target, str | os.PathLike):
        yield target
        return
    path = Path(target)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as part:  # noqa: ASYNC230 - it is open already
            yield part
            await asyncio.to_thread(_synchronize, part)
        os.replace(name, path)
        with suppress(OSError):  # It is there; the directory may not be read.
            await asyncio.to_thread(sync_directory, path.parent)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def _synchronize(file: IO[bytes]) -> None:
    file.flush()
    sync(file.fileno())


@contextmanager
def opened(source: Target) -> Iterator[IO[bytes]]:
    """Raises OSError."""
    if not isinstance(source, str | os.PathLike):
        yield source
        return
    with open(source, "rb") as file:
        yield file


async def pieces(file: IO[bytes], key: types_pb2.AgentKey, start: int) -> AsyncIterator[agent_pb2.ImportAgentRequest]:
    """Yield the requests of an import; a file that can seek is read from its byte `start` on."""
    if file.seekable():
        file.seek(start)
    yield agent_pb2.ImportAgentRequest(key=key)
    while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
        yield agent_pb2.ImportAgentRequest(chunk=chunk)
