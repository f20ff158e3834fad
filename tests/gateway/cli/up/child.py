"""A service for tests of the supervisor: `python -m tests.gateway.cli.up.child BEHAVIOUR NAME DIRECTORY`.

It writes "NAME start PID" and "NAME end" to DIRECTORY/log, and waits for SIGTERM in between.
"""

import os
import signal
import sys
import time
from pathlib import Path

ABORTED = (
    "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution "
    "failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)\n"
)


def main() -> None:
    behaviour, name, directory = sys.argv[1:]
    if behaviour.startswith("late-"):
        time.sleep(0.3)
        behaviour = behaviour.removeprefix("late-")
    if behaviour.startswith("die"):
        sys.stderr.write(f"{name} cannot work: {os.environ.get('TEST_REASON')}\n")
        raise SystemExit(int(behaviour.removeprefix("die")))
    log_file = Path(directory) / "log"
    if behaviour == "live-once" and log_file.exists() and f"{name} start" in log_file.read_text():
        raise SystemExit(2)
    if behaviour == "chatty":
        sys.stdout.write("what it has to say\n" * 20_000)
        sys.stdout.flush()
    # Not by sigwait: a signal that comes just before it is taken by another thread, and ends the process.
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    with log_file.open("a") as log:
        log.write(f"{name} start {os.getpid()}\n")
    while True:
        if os.read(read, 1)[0] == signal.SIGUSR1:
            if behaviour == "aborts":
                sys.stderr.write(ABORTED)
                sys.stderr.flush()
                os.abort()
            raise SystemExit(74 if behaviour == "loses" else 1)
        if behaviour != "stubborn":
            break
    with log_file.open("a") as log:
        log.write(f"{name} end\n")


if __name__ == "__main__":
    main()
