"""Checks that do what checks may do: `python -m tests.gateway.cli.doctor.service HOW`."""

import os
import signal
import sys
import time

from agentmem.process.checkup import Findings, ok, run, warning


def _hangs() -> Findings:
    yield ok("before")
    time.sleep(600)


def main(how: str) -> None:
    sys.stdout.write("a library's own words\n[]\n")
    sys.stdout.flush()
    run({"first": lambda: [ok("fine", "é\n")]})
    match how:
        case "hangs":
            run({"second": _hangs})
        case "crashes":
            run({"second": lambda: os.kill(os.getpid(), signal.SIGILL) or []})
        case "fails":
            sys.stderr.write("one\nthe last words\n")
            sys.exit(3)
        case "says":
            run({"second": lambda: [warning(os.environ["SAID"], "do it")]})


main(sys.argv[1])
