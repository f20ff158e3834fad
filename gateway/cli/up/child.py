"""Modules as children, which end with this process or outlive it."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path


@contextmanager
def bound(
    words: Sequence[str], patience: float, log: Path | None, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module as a child that ends with this process or the block, at the latest after `patience` seconds.

    It writes to `log`, or to standard error, and gets the terminal's Ctrl-C, too.
    """
    lifeline, end = os.pipe()
    watched = (sys.executable, "-m", "agentmem.process.parent", str(lifeline), str(patience), *words)
    with open(lifeline, "rb"), open(end, "wb") as ours:
        with open(log, "ab") if log else nullcontext() as out:
            child = subprocess.Popen(
                watched,
                stdin=subprocess.DEVNULL,
                stdout=out or sys.stderr,
                stderr=subprocess.STDOUT,
                pass_fds=(lifeline,),
                env=environment,
                process_group=0 if out else None,
            )
        try:
            yield child
        finally:
            ours.close()
            child.wait()


def detached(words: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    with open(log, "ab") as out:
        return subprocess.Popen(
            (sys.executable, "-m", *words),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
