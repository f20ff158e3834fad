from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agentmem import layout
from agentmem.process.service import CANNOT_SERVE, WRONG_SETTING

from .commands import DEPLOY, settings_of
from .unit_file import UnitFile

DIRECTORY = DEPLOY / "systemd"
SERVICES = ("store", "worker", "gateway")
CACHES = ("HF_HOME", "XDG_CACHE_HOME", "CUDA_CACHE_PATH")
"""The home of the services' user is the data directory, and a store begins in an empty one."""
EXPOSURE_PERCENT = 20
"""The most that `systemd-analyze security` may give a unit; under 50 is "OK", without hardening 96."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def unit(service: str) -> UnitFile:
    return UnitFile(DIRECTORY / f"agentmem-{service}.service")


def stop_seconds(file: UnitFile) -> float:
    grace = settings_of(file.command, file.environment).model_dump()["grace"]
    return float(grace) + layout.END_SECONDS


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_started_with_flags_of_its_own(service: str) -> None:
    file = unit(service)
    settings = settings_of(file.command, file.environment).model_dump()
    assert settings["run_dir"] == Path("/run", file.one("RuntimeDirectory"))
    if "data" in settings:
        assert settings["data"] == Path("/var/lib", file.one("StateDirectory"))
    assert file.one("RuntimeDirectoryPreserve") == "yes", "the others' sockets are there, too"
    assert file.all("RestartPreventExitStatus") == [str(CANNOT_SERVE), str(WRONG_SETTING)]
    assert file.seconds("TimeoutStopSec") > stop_seconds(file)
    if service == "worker":
        cache = Path("/var/cache", file.one("CacheDirectory"))
        assert all(Path(file.environment[name]).is_relative_to(cache) for name in CACHES)


def test_the_examples_of_the_environment_file_are_settings() -> None:
    lines = (DIRECTORY / "agentmem.env").read_text(encoding="utf-8").splitlines()
    examples = dict(line.removeprefix("#").split("=", 1) for line in lines if line.startswith("#AGENTMEM_"))
    del examples["AGENTMEM_CONFIG"]
    for service in SERVICES:
        assert any(name.startswith(f"AGENTMEM_{service.upper()}_") for name in examples)
        settings_of(unit(service).command, {**unit(service).environment, **examples})
        assert unit(service).one("EnvironmentFile") == "-/etc/agentmem/agentmem.env"


def test_the_target_is_of_all_three() -> None:
    target = UnitFile(DIRECTORY / "agentmem.target")
    assert target.all("Wants") == [f"agentmem-{service}.service" for service in SERVICES]
    assert {unit(service).one("PartOf") for service in SERVICES} == {"agentmem.target"}


def test_the_unit_of_one_user() -> None:
    file = UnitFile(DIRECTORY / "user" / "agentmem.service")
    settings_of(file.command, file.environment)
    assert file.seconds("TimeoutStopSec") > 3 * stop_seconds(file), "they end one after the other"
    assert file.all("RestartPreventExitStatus") == [str(CANNOT_SERVE), str(WRONG_SETTING)]


@needs_systemd
@pytest.mark.parametrize(("folder", "manager"), [(".", "--system"), ("cluster", "--system"), ("user", "--user")])
def test_systemd_finds_nothing_wrong(folder: str, manager: str, tmp_path: Path) -> None:
    for path in (DIRECTORY / folder).glob("agentmem*.*"):
        text = path.read_text().replace("/opt/agentmem/bin", str(tmp_path)).replace("%h/.local/bin", str(tmp_path))
        if path.suffix in (".service", ".target"):
            (tmp_path / path.name).write_text(text)
    units = sorted(map(str, tmp_path.iterdir()))
    for program in ("agentmem", *(f"agentmem-{service}" for service in SERVICES)):
        (tmp_path / program).symlink_to(shutil.which("true") or "/bin/true")
    assert analyze(tmp_path, manager, "verify", *units) == ""


@needs_systemd
@pytest.mark.parametrize("name", [*(f"agentmem-{service}" for service in SERVICES), "cluster/agentmem-node"])
def test_systemd_finds_it_hardened(name: str) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_PERCENT}", "--no-pager"]
    path = DIRECTORY / f"{name}.service"
    judged = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    if "unrecognized option" in judged.stderr:
        pytest.skip("this systemd-analyze is older than 250 and judges loaded units only")
    assert judged.returncode == 0, judged.stdout


def analyze(directory: Path, *arguments: str) -> str:
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{directory}:", "XDG_RUNTIME_DIR": str(directory)}
    command = ["systemd-analyze", "--man=no", "--recursive-errors=no", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stderr + done.stdout
