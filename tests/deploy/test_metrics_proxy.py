"""The proxy of a pod's metrics, run by HAProxy itself: found in PATH, or unpacked from Debian's packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from agentmem.process.exposition import MetricsServer
from tests import debian
from tests.system.stack import free_port

from .test_kubernetes import one

POD = "10.244.1.7"
"""As Prometheus's operator has it ask: by the pod's address."""
PACKAGES = ("haproxy", "liblua5.3-0", "libopentracing1", "libopentracing-c-wrapper0")
"""Debian 12's packages; what else it needs is on any machine."""


@contextmanager
def haproxy(config: Path) -> Iterator[None]:
    program, environment = shutil.which("haproxy"), dict(os.environ)
    if program is None:
        unpacked = debian.unpacked("haproxy", *PACKAGES)
        program = str(unpacked / "usr" / "sbin" / "haproxy")
        environment["LD_LIBRARY_PATH"] = ":".join(map(str, (unpacked / "usr" / "lib").glob("*-linux-gnu*")))
    process = subprocess.Popen([program, "-db", "-f", config], env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def page(port: int, host: str) -> httpx.Response:
    end = time.monotonic() + 30
    while True:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/metrics", headers={"Host": f"{host}:{port}"}, timeout=10)
        except httpx.ConnectError:
            assert time.monotonic() < end, "HAProxy does not listen"
            time.sleep(0.02)


@contextmanager
def pages(names: list[str]) -> Iterator[Mapping[str, int]]:
    servers = dict[str, MetricsServer]()
    for name in names:
        registry = CollectorRegistry()
        Gauge("agentmem_build_info", "Which one it is.", ["service"], registry=registry).labels(name).set(1)
        servers[name] = MetricsServer("127.0.0.1:0", registry)
    try:
        yield {name: int(server.address.rpartition(":")[2]) for name, server in servers.items()}
    finally:
        for server in servers.values():
            server.stop()


def test_prometheus_reads_each_page_by_the_pods_address(tmp_path: Path) -> None:
    """A page itself refuses that: no browser is to reach it by the name of a web page."""
    config = one("ConfigMap", "agentmem-metrics-proxy")["data"]["haproxy.cfg"]
    bound = {name: int(port) for name, port in re.findall(r"listen (\w+)\n\s+bind :(\d+)", config)}
    behind = {name: int(port) for name, port in re.findall(r"listen (\w+)\n(?:.+\n)+?\s+server here \S+:(\d+)", config)}
    assert bound.keys() == behind.keys() == {"gateway", "worker", "store"}
    doors = {name: free_port() for name in bound}
    with pages([*bound]) as own:
        for name in bound:
            config = config.replace(f"bind :{bound[name]}", f"bind 127.0.0.1:{doors[name]}")
            config = config.replace(f"127.0.0.1:{behind[name]}", f"127.0.0.1:{own[name]}")
        file = tmp_path / "haproxy.cfg"
        file.write_text(config)
        try:
            with haproxy(file):
                for name in bound:
                    assert page(own[name], POD).status_code == 421
                    answer = page(doors[name], POD)
                    assert (answer.status_code, f'service="{name}"' in answer.text) == (200, True), answer.text
        except debian.Unavailable as problem:
            pytest.skip(str(problem))
