"""A real Prometheus for tests: found in PATH or unpacked from Debian's package without root, started, and asked."""

from __future__ import annotations

import functools
import math
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests import debian
from tests.debian import Unavailable as Unavailable
from tests.system.stack import free_port

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Programs:
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
    """Return PATH's, or Debian's. Raises Unavailable."""
    found = [shutil.which(name) for name in ("prometheus", "promtool")]
    if found[0] and found[1]:
        return Programs(Path(found[0]), Path(found[1]))
    unpacked = debian.unpacked("prometheus", "prometheus") / "usr" / "bin"
    return Programs(unpacked / "prometheus", unpacked / "promtool")


Series = tuple[dict[str, str], list[tuple[float, float]]]
"""Labels, and points of (time in seconds, value)."""


def values(series: list[Series]) -> list[float]:
    return [value for _, points in series for _, value in points if not math.isnan(value)]


class Prometheus:
    """One that runs, at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=f"{url}/api/v1", timeout=30)

    def close(self) -> None:
        self._http.close()

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """The instant vector, or scalar, at a time, default now. Raises AssertionError with its complaint."""
        told = self._get("query", {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"}))
        if told["resultType"] == "scalar":
            return [({}, [(told["result"][0], float(told["result"][1]))])]
        return [(one["metric"], [(one["value"][0], float(one["value"][1]))]) for one in told["result"]]

    def query_range(self, expression: str, begin: float, end: float, step: float) -> list[Series]:
        """Return series. Raises AssertionError with the complaint."""
        asked = {"query": expression, "start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        told = self._get("query_range", asked)
        return [(one["metric"], [(at, float(value)) for at, value in one["values"]]) for one in told["result"]]

    def label_values(self, label: str, series: str) -> list[str]:
        """The values of a label of series, as Grafana's label_values asks for them."""
        told: list[str] = self._get(f"label/{label}/values", {"match[]": series})
        return told

    def get(self, path: str) -> Any:
        return self._get(path, {})

    def _get(self, path: str, asked: Mapping[str, str]) -> Any:
        answer = self._http.get(path, params=dict(asked)).json()
        assert answer["status"] == "success", f"{answer.get('error')}: {asked}"
        return answer["data"]


def shipped_config(folder: Path, stacks: Mapping[str, Mapping[str, str]], interval: str = "1s") -> Path:
    """The configuration that is shipped, as a file in `folder`; its rules stay. `stacks` has the real addresses of
    services by the name of their stack, which is "local" where there is one.
    """
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] |= {"scrape_interval": interval, "evaluation_interval": interval}
    config["rule_files"] = [str(CONFIG.parent / pattern) for pattern in config["rule_files"]]
    for job in config["scrape_configs"]:
        job["static_configs"] = [
            {"targets": [addresses[group["labels"]["service"]]], "labels": group["labels"] | {"instance": name}}
            for name, addresses in stacks.items()
            for group in job["static_configs"]
        ]
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
