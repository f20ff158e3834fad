import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

_PASSED: Final = (signal.SIGTERM, signal.SIGHUP)
_BY_SIGNAL: Final = 128


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a client at this terminal until it ends. Return its exit status.

    The terminal's Ctrl-C is the client's; signals to this process are passed on. While the client is suspended, this
    process is, too, so that its shell takes over.
    """
    with _signals() as ours:
        child = subprocess.Popen(command, env=environment)
        ours.append(child)
        while os.WIFSTOPPED(status := os.waitpid(child.pid, os.WUNTRACED)[1]):
            os.kill(os.getpid(), signal.SIGSTOP)
            child.send_signal(signal.SIGCONT)
        child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode if child.returncode >= 0 else _BY_SIGNAL - child.returncode


@contextmanager
def _signals() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Yield a list for the child. A handler, unlike SIG_IGN, is not inherited by it."""
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield children
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment(variables: Mapping[str, str], host: str) -> dict[str, str]:
    """Return this process's variables with others; requests to `host` go through no proxy."""
    names = "NO_PROXY", "no_proxy"
    direct = ",".join(dict.fromkeys(filter(None, (*map(os.environ.get, names), host))))
    return {**os.environ, **dict.fromkeys(names, direct), **variables}
