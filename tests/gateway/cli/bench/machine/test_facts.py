"""Facts of a Mac, by programs that say what macOS' own say."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gateway.cli.bench.machine import facts

SYSCTL = {
    "machdep.cpu.brand_string": "Apple M2 Max",
    "hw.model": "Mac14,6",
    "hw.perflevel0.physicalcpu": "8",
    "hw.perflevel1.physicalcpu": "4",
    "iogpu.wired_limit_mb": "0",
}
IOREG = """+-o AGXAcceleratorG14X  <class AGXAcceleratorG14X, id 0x1000003c8>
    {
      "IOPlatformSerialNumber" = "C02SECRET123"
      "gpu-core-count" = 38
    }"""
PMSET = "System-wide power settings:\nCurrently in use:\n lowpowermode         1\n sleep                1"


@pytest.fixture
def on_a_mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, SYSCTL)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("26.1", ("", "", ""), "arm64"))
    monkeypatch.setattr(psutil, "sensors_battery", lambda: SimpleNamespace(percent=81.4, power_plugged=False))


def programs(folder: Path, sysctl: Mapping[str, str]) -> None:
    known = "".join(f'"-n {name}") echo "{value}";;\n' for name, value in sysctl.items())
    scripts = {
        "sysctl": f'case "$*" in\n{known}*) echo "unknown oid" >&2; exit 1;;\nesac',
        "ioreg": f"cat <<'END'\n{IOREG}\nEND",
        "pmset": f"cat <<'END'\n{PMSET}\nEND",
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)


@pytest.mark.usefixtures("on_a_mac")
def test_a_mac() -> None:
    found = facts.machine()
    expected = {
        "chip": "Apple M2 Max",
        "mac": "Mac14,6",
        "performance_cores": 8,
        "efficiency_cores": 4,
        "gpu_cores": 38,
        "wired_limit_mb": 0,
        "system": "macOS 26.1",
        "power": "battery at 81 %, low power mode",
    }
    assert {name: found[name] for name in expected} == expected
    assert "SECRET" not in str(found) and "Rosetta" not in facts.python()


@pytest.mark.usefixtures("on_a_mac")
def test_an_x86_python_on_a_mac(tmp_path: Path) -> None:
    programs(tmp_path, SYSCTL | {"sysctl.proc_translated": "1"})
    assert facts.python().endswith(" under Rosetta")


@pytest.mark.usefixtures("on_a_mac")
def test_a_mac_that_says_nothing_has_fewer_facts(tmp_path: Path) -> None:
    for name in ("sysctl", "ioreg", "pmset"):
        (tmp_path / name).write_text('#!/bin/sh\necho "lowpowermode 1"\necho 7\nexit 1\n')
    found = facts.machine()
    assert found["chip"] == "a Mac of unknown chip" and found["power"] == "battery at 81 %"
    assert not {"mac", "gpu_cores", "wired_limit_mb"} & found.keys()


def test_here() -> None:
    found = facts.machine()
    assert found["chip"] and found["cores"] and found["memory_bytes"] > 2**30
    assert facts.versions()["mlx-lm"] and facts.memory()["available"] > 0
