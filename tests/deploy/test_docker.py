"""Dockerfile and compose files: what can be said of them without a Docker daemon."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agentmem import layout
from agentmem.process.settings import ServiceSettings

from .commands import DEPLOY, ROOT, settings_of
from .compose_file import compose, environment, instructions

DIRECTORY = DEPLOY / "docker"
DOCKERFILE = DIRECTORY / "Dockerfile"
SERVICES = ("store", "worker", "gateway")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = compose(DIRECTORY / "compose.yaml")["services"]
    return found


def settings(services: dict[str, Any], name: str) -> ServiceSettings:
    told = {**environment(DOCKERFILE), **services[name].get("environment", {})}
    for openblas in ("LD_PRELOAD", "OPENBLAS_THREAD_TIMEOUT"):
        told.pop(openblas, None)
    return settings_of(services[name]["command"], told)


def volumes(service: dict[str, Any]) -> dict[str, str]:
    return {place.split(":")[1]: place.split(":")[0] for place in service["volumes"]}


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    assert hadolint, "it is among the development packages: make setup"
    judged = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stdout) == (0, "")


def test_the_image_is_built_from_what_there_is() -> None:
    told = instructions(DOCKERFILE)
    sources = {source for name, rest in told if name == "COPY" and "--from" not in rest for source in rest.split()[:-1]}
    assert all((ROOT / source).exists() for source in sources)
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert sources == {line.removeprefix("!") for line in allowed if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {package.split("/")[0] for package in packages} < sources
    for file in ("compose.yaml", "compose.cuda.yaml"):
        extra = compose(DIRECTORY / file)["services"]["pod"]["build"]["args"]["MLX"]
        assert extra in project["project"]["optional-dependencies"]
    (makes_with,) = re.findall(r"^UV_VERSION := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert ("ARG", f"UV_VERSION={makes_with}") in told


def test_what_the_image_runs_by_itself() -> None:
    told = dict(instructions(DOCKERFILE))
    up = settings_of(json.loads(told["CMD"]), environment(DOCKERFILE)).model_dump()
    assert str(up["data"]) in told["VOLUME"].split()
    caches = [environment(DOCKERFILE)[name] for name in ("HF_HOME", "XDG_CACHE_HOME", "CUDA_CACHE_PATH")]
    assert not any(Path(cache).is_relative_to(up["data"]) for cache in caches), "a store begins in an empty directory"
    assert up["http"] == layout.HTTP, "nobody outside is let in without keys"
    assert told["EXPOSE"].split() == [address.rpartition(":")[2] for address in (up["http"], up["grpc"])]
    assert f'"http://{up["http"]}/readyz"' in told["HEALTHCHECK"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service(services: dict[str, Any], name: str) -> None:
    service, said = services[name], settings(services, name).model_dump()
    mounted = volumes(service)
    assert mounted[str(said["run_dir"])] == "run"
    assert name == "gateway" or mounted[str(said["data"])] == "data"
    grace = float(re.fullmatch(r"(\d+)s", service["stop_grace_period"])[1])  # type: ignore[index]
    assert grace > said["grace"] + layout.END_SECONDS


def test_who_is_asked_for_their_health(services: dict[str, Any]) -> None:
    run = Path(environment(DOCKERFILE)["AGENTMEM_WORKER_RUN_DIR"])
    expected = {
        "store": layout.store_socket(run),
        "worker": layout.worker_socket(run),
        "gateway": "http://127.0.0.1:8080/readyz",
    }
    asked = ["CMD", "python", "-m", "agentmem.process.health"]
    assert {name: services[name]["healthcheck"]["test"] for name in SERVICES} == {
        name: [*asked, target] for name, target in expected.items()
    }


def test_who_can_come_in(services: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert list(published) == ["pod"] and all(port.startswith("127.0.0.1:") for port in published["pod"])
    gateway = settings(services, "gateway").model_dump()
    for door in ("http", "grpc"):
        host, _, port = gateway[door].rpartition(":")
        assert host == "0.0.0.0" and f"127.0.0.1:{port}:{port}" in published["pod"]


def test_keys_are_made_where_the_gateway_reads_them(services: dict[str, Any]) -> None:
    keys = services["keys"]
    made = layout.key_file(Path(keys["environment"]["AGENTMEM_UP_DATA"]))
    read = settings(services, "gateway").model_dump()["keys"]
    assert read == made
    assert volumes(keys)[str(made.parent)] == volumes(services["gateway"])[str(read.parent)] == "keys"


def test_prometheus_and_grafana_find_what_they_need(services: dict[str, Any]) -> None:
    for name in ("prometheus", "grafana"):
        for source in volumes(services[name]).values():
            assert not source.startswith("..") or (DIRECTORY / source).is_dir()
    scraped = compose(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"][0]["static_configs"]
    pages = {name: [settings(services, name).model_dump()["metrics"]] for name in SERVICES}
    assert {config["labels"]["service"]: config["targets"] for config in scraped} == pages
    wanted = {
        variable
        for path in (DEPLOY / "grafana" / "provisioning").rglob("*.yml")
        for variable in re.findall(r"\$\{(\w+)\}", path.read_text())
    }
    assert wanted <= set(services["grafana"]["environment"])
    dashboards = services["grafana"]["environment"]["AGENTMEM_DASHBOARDS"]
    assert volumes(services["grafana"])[dashboards] == "../grafana/dashboards"
