import os
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeAlias

from agentmem.console import in_foreground, is_screen

_PASSED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_BY_SIGNAL: Final = 128
_USUAL_SCREEN: Final = "\x1b[?1049l\x1b[?25h"

Runner: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], int]


@contextmanager
def signals_passed_on() -> Iterator[Runner]:
    """Yield what runs a client at this terminal, and returns its exit status.

    In the block signals are the client's. Those that come too late end this process at the block's end, so that no file
    stays. While the client is suspended, this process is, too, so that its shell takes over.
    """
    clients: list[int] = []
    waiting: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        for client in clients:
            os.kill(client, number)
        if not clients:
            waiting.append(number)

    def run(command: Sequence[str], variables: Mapping[str, str]) -> int:
        modes = _modes()
        process = subprocess.Popen(command, env=variables)
        clients.append(process.pid)
        while waiting:
            os.kill(process.pid, waiting.pop(0))
        while not (told := os.waitpid(process.pid, os.WUNTRACED | os.WNOHANG))[0] or os.WIFSTOPPED(told[1]):
            if told[0]:
                os.kill(os.getpid(), signal.SIGSTOP)
                os.kill(process.pid, signal.SIGCONT)
            else:
                os.read(wakes, 1)
        clients.clear()
        process.returncode = os.waitstatus_to_exitcode(told[1])
        if process.returncode >= 0:
            return process.returncode
        _restore(modes)
        return _BY_SIGNAL - process.returncode

    # A handler, unlike SIG_IGN, is not inherited. The terminal gives the client its Ctrl-C and Ctrl-Z itself.
    left = dict.fromkeys((signal.SIGINT, signal.SIGTSTP, signal.SIGCHLD), lambda *_: None)
    handlers = dict.fromkeys(_PASSED, pass_on) | left
    ignored = {number for number in handlers if signal.getsignal(number) is signal.SIG_IGN}  # as by nohup
    wakes, woken = os.pipe()  # a signal just before a wait would be handled after it
    os.set_blocking(woken, False)
    woken_before = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    before = {number: signal.signal(number, handlers[number]) for number in handlers.keys() - ignored}
    try:
        yield run
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken_before)
        os.close(wakes)
        os.close(woken)
    if waiting:
        raise SystemExit(_BY_SIGNAL + waiting[0])


def _modes() -> list[Any] | None:
    try:
        return termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):  # it is no terminal
        return None


def _restore(modes: list[Any] | None) -> None:
    if modes is not None and in_foreground(sys.stdin):
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)
    if is_screen(sys.stdout) and in_foreground(sys.stdout):
        sys.stdout.write(_USUAL_SCREEN)
        sys.stdout.flush()


def environment(variables: Mapping[str, str], host: str) -> dict[str, str]:
    """Return this process's variables with others; requests to `host` go through no proxy."""
    names = "NO_PROXY", "no_proxy"
    direct = ",".join(dict.fromkeys(filter(None, (*map(os.environ.get, names), host))))
    return {**os.environ, **dict.fromkeys(names, direct), **variables}
