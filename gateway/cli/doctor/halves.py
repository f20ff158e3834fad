"""A half of the doctor as a process, whose findings are taken line by line; one that hangs is ended."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from agentmem.checkup import Begun, Finding, decode, unknown

SILENCE_SECONDS = 60.0
"""What a check may take. Opening a model with a large vocabulary takes seconds; the rest is much faster."""

_LINE_BYTES = 1 << 20
_GRACE_SECONDS = 1.0
_END_SECONDS = 2.0
_TAIL_BYTES = 4096


@dataclass(frozen=True)
class Half:
    """A module that writes the lines of `agentmem.checkup`. `environment` is added to ours."""

    name: str
    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


async def findings(half: Half) -> AsyncIterator[Begun | Finding]:
    """All that the half says; last, where it did not come to its end, at which check that was.

    It may say nothing for SILENCE_SECONDS: each check ends within that time, or its process does. The process ends when
    ours does, however that comes about.
    """
    watched, lifeline = os.pipe()
    with tempfile.TemporaryFile() as errors:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "agentmem.parent", str(watched), str(_GRACE_SECONDS), half.module),
                *half.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **half.environment},
                pass_fds=(watched,),
                process_group=0,
                limit=_LINE_BYTES,
            )
            at = half.name
            try:
                assert process.stdout is not None
                while line := await asyncio.wait_for(process.stdout.readline(), SILENCE_SECONDS):
                    with suppress(ValueError):  # a library's own words
                        said = decode(line.decode("utf-8", "replace"))
                        at = said.check
                        yield said
                status = await asyncio.wait_for(process.wait(), SILENCE_SECONDS)
            except TimeoutError:
                hung = (
                    f"it did not end within {SILENCE_SECONDS:g} s, and the {half.name}'s checks after it were not made"
                )
                yield unknown(at, hung, "look at what it has to do with, which may hang: a disk, a network, a device")
            else:
                if status:
                    ended = f"the {half.name}'s checks ended here with {_outcome(status)}: {_last_line(errors)}"
                    yield unknown(at, ended, _ADVICE)
            finally:
                await _end(process)
        finally:
            os.close(watched)
            os.close(lifeline)


_ADVICE = "read what it says; a crash in a library often means that its build is not for this machine"


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process with all that it started. One that the system holds in a call is left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _END_SECONDS)


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - _TAIL_BYTES))
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _outcome(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"
