"""A module of checks for `agentmem doctor` that do what checks may do, as the environment's HOW says."""

import os
import signal
import sys
import time

from agentmem.process.checkup import Checks, ok, warning
from gateway.cli.up.settings import UpSettings

SETTINGS = UpSettings

if os.environ.get("HOW") == "hangs":
    time.sleep(600)


def checks(_: UpSettings) -> Checks:
    sys.stdout.write("a library's own words\n[]\n")
    ends = {
        "says": lambda: [warning(os.environ["HOW"], "do it")],
        "crashes": lambda: os.kill(os.getpid(), signal.SIGILL) or [],
        "fails": lambda: sys.exit("one\nthe last words"),
    }
    return {"first": lambda: [ok("fine", "é\n")], "second": ends[os.environ["HOW"]]}
