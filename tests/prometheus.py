"""A real Prometheus for tests: found in PATH or unpacked from Debian's package without root, started, and asked."""

from __future__ import annotations

import fcntl
import functools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.user_cache import NoCache, user_cache
from tests.system.stack import free_port

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"
"""The configuration that is shipped."""
_APT_SECONDS = 120
_START_SECONDS = 60.0


class Unavailable(Exception):
    """There is no Prometheus here, and none can be had; says why."""


@dataclass(frozen=True)
class Programs:
    """Prometheus and its tool, of one version."""

    prometheus: Path
    promtool: Path

    def check(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        """Run promtool; what it wrote. Raises AssertionError with that where it complains."""
        command = [str(self.promtool), *map(str, arguments)]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
        told = done.stdout + done.stderr
        assert done.returncode == 0, told
        return told


@functools.cache
def programs() -> Programs:
    """Those in PATH, or Debian's, unpacked once for each user. Raises Unavailable.

    Processes that come at the same time wait for the first, which unpacks.
    """
    found = [shutil.which(name) for name in ("prometheus", "promtool")]
    if found[0] and found[1]:
        return Programs(Path(found[0]), Path(found[1]))
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Unavailable("no prometheus and promtool in PATH, and no apt-get to fetch them; install Prometheus")
    try:
        folder = user_cache("prometheus")
    except NoCache as problem:
        raise Unavailable(str(problem)) from problem
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unpacked = folder / "unpacked"
        if not unpacked.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _unpack(Path(scratch)).rename(unpacked)
    return Programs(unpacked / "usr" / "bin" / "prometheus", unpacked / "usr" / "bin" / "promtool")


def _unpack(scratch: Path) -> Path:
    """Fetch the package by the package lists that are there, or else by fresh ones, kept apart from the system's."""
    private = ["-o", f"Dir::State::Lists={scratch}/lists", "-o", f"Dir::Cache={scratch}/cache"]
    (scratch / "lists" / "partial").mkdir(parents=True)
    (scratch / "cache" / "archives" / "partial").mkdir(parents=True)
    if _apt(scratch, "download", "prometheus") is not None:
        for command in (("update",), ("download", "prometheus")):
            problem = _apt(scratch, *private, *command)
            if problem is not None:
                raise Unavailable(f"no prometheus in PATH, and Debian's cannot be fetched: {problem}")
    (package,) = scratch.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, scratch / "x"], check=True, capture_output=True, timeout=_APT_SECONDS)
    return scratch / "x"


def _apt(folder: Path, *arguments: str) -> str | None:
    """Run apt-get there; its last words where it fails."""
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=", "-o", "Acquire::http::Timeout=20", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_APT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} did not end"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["apt-get failed"])[-1]


Series = tuple[dict[str, str], list[tuple[float, float]]]
"""Labels, and points of (time in seconds, value)."""


class Prometheus:
    """One that runs, at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=f"{url}/api/v1", timeout=30)

    def close(self) -> None:
        """Close the connections to it."""
        self._http.close()

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """The instant vector, or scalar, at a time, default now. Raises AssertionError with its complaint."""
        told = self._get("query", {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"}))
        if told["resultType"] == "scalar":
            return [({}, [(told["result"][0], float(told["result"][1]))])]
        return [(one["metric"], [(one["value"][0], float(one["value"][1]))]) for one in told["result"]]

    def query_range(self, expression: str, begin: float, end: float, step: float) -> list[Series]:
        """What a panel draws. Raises AssertionError with its complaint."""
        asked = {"query": expression, "start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        told = self._get("query_range", asked)
        return [(one["metric"], [(at, float(value)) for at, value in one["values"]]) for one in told["result"]]

    def label_values(self, label: str, series: str) -> list[str]:
        """The values of a label of series, as Grafana's label_values asks for them."""
        told: list[str] = self._get(f"label/{label}/values", {"match[]": series})
        return told

    def get(self, path: str) -> Any:
        """Another part of its API: "rules", "targets", "alerts"."""
        return self._get(path, {})

    def _get(self, path: str, asked: Mapping[str, str]) -> Any:
        answer = self._http.get(path, params=dict(asked)).json()
        assert answer["status"] == "success", f"{answer.get('error')}: {asked}"
        return answer["data"]


def shipped_config(folder: Path, addresses: Mapping[str, str], interval: str = "1s") -> Path:
    """The configuration that is shipped, with the services' real addresses, as a file in `folder`; its rules stay."""
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] |= {"scrape_interval": interval, "evaluation_interval": interval}
    config["rule_files"] = [str(CONFIG.parent / pattern) for pattern in config["rule_files"]]
    for job in config["scrape_configs"]:
        for group in job["static_configs"]:
            group["targets"] = [addresses[group["labels"]["service"]]]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    return file


@contextmanager
def running(config: Path, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus with this configuration, which keeps its data in `folder`. Raises Unavailable."""
    binary = programs().prometheus
    log = folder / "prometheus.log"
    address = f"127.0.0.1:{free_port()}"
    command = [
        *(str(binary), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"),
        *(f"--web.listen-address={address}", "--log.level=warn"),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    asked = Prometheus(f"http://{address}")
    try:
        _wait(process, f"http://{address}/-/ready", log)
        yield asked
    finally:
        asked.close()
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], page: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            if httpx.get(page, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"Prometheus did not become ready:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.05)
