"""Runs a service that must not outlive the process that started it.

    python -m agentmem.process.parent FD GRACE MODULE ARGS…

FD is the reading end of a pipe whose writing end only the parent holds, so its end of file means that the parent is
gone, however it went. The service is then asked to end by SIGTERM, and after GRACE seconds it is ended. Nothing is
asked of the service: the module runs in this process as `python -m MODULE ARGS…` would run it.
"""

import os
import runpy
import signal
import sys
import threading
import time


def end_with_parent(fd: int, grace: float) -> None:
    """Watch `fd` from a thread of its own, and end this process when its other end is closed."""
    os.set_inheritable(fd, False)
    threading.Thread(target=_watch, args=(fd, grace), name="parent-watch", daemon=True).start()


def _watch(fd: int, grace: float) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run the module that the command line names."""
    fd, grace, module, *arguments = sys.argv[1:]
    end_with_parent(int(fd), float(grace))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
