"""A gateway in a process of its own, whose time and memory are its own, and what a request costs it.

The time that a probe waits is measured as the processor time that the gateway uses meanwhile: on a busy machine it
waits longer, but hardly for more work.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from agentmem.layout import GATEWAY_FILE
from tests.peaks import Peaks

from .background import looping
from .scripted import ScriptedWorker

_START_SECONDS = 120.0


class Cost(NamedTuple):
    """The cost of a request: processor seconds, peak bytes of memory above an idle gateway's, and the processor seconds
    of the longest wait of a probe.
    """

    seconds: float
    grown: int
    waited: float


class MeasuredGateway:
    """A gateway before a worker that says hello."""

    def __init__(self, url: str, process: psutil.Process) -> None:
        self.url = url
        self._process = process
        self._http = httpx.Client(base_url=url, timeout=600)
        self._probe = httpx.Client(base_url=url, timeout=600)
        assert self._probe.get("/readyz").status_code == 200
        self._memory = Peaks({"gateway": process.pid})

    def close(self) -> None:
        self._http.close()
        self._probe.close()

    def measured(self, method: str, path: str, body: bytes, **headers: str) -> tuple[httpx.Response, Cost]:
        """Return what a request with a JSON body is answered, and its cost."""
        self._memory.forget()
        began = self._used()
        waits, done = [0.0], threading.Event()
        probing = threading.Thread(target=self._ask_until, args=(done, waits))
        probing.start()
        try:
            answer = self._http.request(
                method, path, content=body, headers={"content-type": "application/json", **headers}
            )
        finally:
            done.set()
            probing.join()
        return answer, Cost(self._used() - began, self._memory.most()["gateway"], max(waits))

    def _ask_until(self, done: threading.Event, waits: list[float]) -> None:
        while not done.is_set():
            before = self._used()
            assert self._probe.get("/healthz").status_code == 200
            waits.append(self._used() - before)
            time.sleep(0.02)

    def _used(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def measured_gateway(*flags: str) -> Iterator[MeasuredGateway]:
    """Run a gateway with further flags, and its worker, while the block runs."""
    anywhere = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", "")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="am") as directory, looping() as run:
        run_dir = Path(directory)
        worker = ScriptedWorker(f"{run_dir}/worker.sock")
        run(worker.start())
        command = (sys.executable, "-m", "gateway", "--run-dir", str(run_dir), *anywhere, "--grace", "1", *flags)
        with (run_dir / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            gateway = MeasuredGateway(_url(process, run_dir), psutil.Process(process.pid))
            try:
                yield gateway
            finally:
                gateway.close()
        finally:
            process.terminate()
            process.wait(60)
            run(worker.stop())


def _url(process: subprocess.Popen[bytes], run_dir: Path) -> str:
    file, log = run_dir / GATEWAY_FILE, run_dir / "log"
    until = time.monotonic() + _START_SECONDS
    while not file.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.02)
    return f"http://{json.loads(file.read_text())['http']}"
