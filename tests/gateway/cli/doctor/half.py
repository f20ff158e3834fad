"""Halves that do what a half may do: `python -m tests.gateway.cli.doctor.half HOW`."""

import os
import signal
import sys
import time

from agentmem.checkup import Findings, ok, tell, warning


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _hangs() -> Findings:
    yield ok("second", "before")
    time.sleep(600)


def main(how: str) -> None:
    sys.stdout.write("a library's own words\n[]\n")
    tell([("first", lambda: [ok("first", "fine", "é\n")])], _write)
    match how:
        case "hangs":
            tell([("second", _hangs)], _write)
        case "crashes":
            tell([("second", lambda: os.kill(os.getpid(), signal.SIGILL) or [])], _write)
        case "fails":
            sys.stderr.write("one\nthe last words\n")
            sys.exit(3)
        case "says":
            tell([("second", lambda: [warning("second", os.environ["SAID"], "do it")])], _write)


main(sys.argv[1])
