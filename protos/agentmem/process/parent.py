"""Runs a service that must not outlive the process that started it.

    python -m agentmem.process.parent FD GRACE MODULE ARGS…

FD is the reading end of a pipe whose other end only the parent holds. At its end of file the service gets SIGTERM, and
after GRACE seconds SIGKILL.
"""

import os
import runpy
import signal
import sys
import threading
import time


def end_with_parent(fd: int, grace: float) -> None:
    os.set_inheritable(fd, False)
    threading.Thread(target=_watch, args=(fd, grace), name="parent-watch", daemon=True).start()


def _watch(fd: int, grace: float) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    fd, grace, module, *arguments = sys.argv[1:]
    end_with_parent(int(fd), float(grace))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
