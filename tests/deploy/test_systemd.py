"""The units: what systemd says of them, and what the services say of their flags."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agentmem import layout
from agentmem.process.service import CANNOT_SERVE, WRONG_SETTING
from agentmem.process.sockets import MAX_SOCKET_PATH_BYTES

from .commands import DEPLOY, settings_of
from .unit_file import UnitFile

DIRECTORY = DEPLOY / "systemd"
SERVICES = ("store", "worker", "gateway")
EXPOSURE_PERCENT = 20
"""What `systemd-analyze security` may give a unit at most; under 50 is "OK", without hardening it is 96."""

LOCKED = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",  # MLX runs what it finds in a directory of a known name there
    "RestrictNamespaces": "yes",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
}

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def unit(service: str) -> UnitFile:
    return UnitFile(DIRECTORY / f"agentmem-{service}.service")


def stop_seconds(file: UnitFile) -> float:
    """What the service takes to end at most."""
    grace = settings_of(file.command, file.environment).model_dump()["grace"]
    return float(grace) + layout.END_SECONDS


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_started_with_flags_of_its_own(service: str) -> None:
    file = unit(service)
    settings = settings_of(file.command, file.environment).model_dump()
    assert settings["run_dir"] == Path("/run", file.one("RuntimeDirectory"))
    if "data" in settings:
        assert settings["data"] == Path("/var/lib", file.one("StateDirectory"))
    assert len(f"{settings['run_dir']}/worker.sock") <= MAX_SOCKET_PATH_BYTES


def test_nothing_of_others_comes_into_the_data_directory() -> None:
    """The home of the services' user; see datadir.refuse_foreign."""
    worker = unit("worker")
    cache = Path("/var/cache", worker.one("CacheDirectory"))
    for variable in ("HF_HOME", "XDG_CACHE_HOME", "CUDA_CACHE_PATH"):
        assert Path(worker.environment[variable]).is_relative_to(cache)


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_private(service: str) -> None:
    file = unit(service)
    assert file.one("RuntimeDirectoryMode") == "0700" and file.one("UMask") == "0077"
    assert file.one("RuntimeDirectoryPreserve") == "yes", "the others' sockets are there, too"
    assert {key: file.one(key) for key in LOCKED} == LOCKED
    assert file.all("SystemCallFilter")[:2] == ["@system-service", "~@privileged"]
    if file.all("StateDirectory"):
        assert file.one("StateDirectoryMode") == "0700"


@pytest.mark.parametrize("service", SERVICES)
def test_when_it_is_started_again_and_when_killed(service: str) -> None:
    file = unit(service)
    assert (file.one("Type"), file.one("Restart"), file.one("StartLimitIntervalSec")) == ("notify", "on-failure", "0")
    assert file.all("RestartPreventExitStatus") == [str(CANNOT_SERVE), str(WRONG_SETTING)]
    assert file.seconds("TimeoutStopSec") > stop_seconds(file)
    assert file.one("KillMode") == "mixed"


def test_nobody_goes_down_with_another() -> None:
    target = UnitFile(DIRECTORY / "agentmem.target")
    assert target.all("Wants") == [f"agentmem-{service}.service" for service in SERVICES]
    for service in SERVICES:
        for key in ("Requires", "Requisite", "BindsTo", "Upholds", "PropagatesStopTo"):
            assert not unit(service).all(key)
        assert unit(service).one("PartOf") == "agentmem.target"
    assert "agentmem-store.service" in unit("worker").all("After")
    assert {"agentmem-store.service", "agentmem-worker.service"} < set(unit("gateway").all("After"))


def test_the_examples_of_the_environment_file_are_settings() -> None:
    lines = (DIRECTORY / "agentmem.env").read_text(encoding="utf-8").splitlines()
    examples = dict(line.removeprefix("#").split("=", 1) for line in lines if line.startswith("#AGENTMEM_"))
    del examples["AGENTMEM_CONFIG"]
    for service in SERVICES:
        assert any(name.startswith(f"AGENTMEM_{service.upper()}_") for name in examples)
        settings_of(unit(service).command, {**unit(service).environment, **examples})
        assert unit(service).one("EnvironmentFile") == "-/etc/agentmem/agentmem.env"


def test_the_units_of_one_user() -> None:
    file = UnitFile(DIRECTORY / "user" / "agentmem.service")
    settings_of(file.command, file.environment)
    assert file.seconds("TimeoutStopSec") > 3 * stop_seconds(file), "they end one after the other"
    assert file.all("RestartPreventExitStatus") == ["1", "2"]


@needs_systemd
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    for path in (*DIRECTORY.glob("*.service"), *DIRECTORY.glob("*.target")):
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/agentmem/bin", str(tmp_path)))
    for service in SERVICES:
        (tmp_path / f"agentmem-{service}").symlink_to(shutil.which("true") or "/bin/true")
    assert analyze(tmp_path, "verify", *map(str, sorted(tmp_path.glob("*.*")))) == ""

    broken = tmp_path / "agentmem-store.service"
    broken.write_text(broken.read_text().replace("UMask=", "Umask="))
    assert "Umask" in analyze(tmp_path, "verify", str(broken))


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_units_of_one_user(tmp_path: Path) -> None:
    text = (DIRECTORY / "user" / "agentmem.service").read_text()
    path = tmp_path / "agentmem.service"
    path.write_text(text.replace("%h/.local/bin/agentmem", shutil.which("true") or "/bin/true"))
    assert analyze(tmp_path, "--user", "verify", str(path)) == ""


@needs_systemd
@pytest.mark.parametrize("service", SERVICES)
def test_systemd_finds_it_hardened(service: str, tmp_path: Path) -> None:
    path = DIRECTORY / f"agentmem-{service}.service"
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_PERCENT}", "--no-pager"]
    judged = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    if "unrecognized option" in judged.stderr:
        pytest.skip("this systemd-analyze is older than 250 and judges loaded units only")
    assert judged.returncode == 0, judged.stdout


def analyze(directory: Path, *arguments: str) -> str:
    """What systemd-analyze complains about, of our units only."""
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{directory}:", "XDG_RUNTIME_DIR": str(directory)}
    command = ["systemd-analyze", "--man=no", "--recursive-errors=no", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stderr + done.stdout
