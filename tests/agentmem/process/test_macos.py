"""Facts about a Mac, of a kernel that a small library in C plays."""

import asyncio
import ctypes
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.console import Mistake
from agentmem.errors import FailedPrecondition
from agentmem.process import macos
from agentmem.process.macos import mend_import, sysctl_int, unfit_python
from agentmem.process.settings import load
from gateway.cli.up.preflight import check
from gateway.cli.up.settings import UpSettings
from inference_service.__main__ import _serve
from inference_service.settings import WorkerSettings

KERNEL = """
#include <string.h>
int sysctlbyname(const char *name, void *old, size_t *size, const void *new, size_t length) {
    int small = 4;
    long large = 1L << 40;
    if (new != NULL || length != 0) return -1;
    if (!strcmp(name, "kern.small") && *size >= sizeof small) memcpy(old, &small, *size = sizeof small);
    else if (!strcmp(name, "hw.large") && *size >= sizeof large) memcpy(old, &large, *size = sizeof large);
    else return -1;
    return 0;
}
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    (tmp_path / "kernel.c").write_text(KERNEL)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "kernel.so", tmp_path / "kernel.c"], check=True)
    library = ctypes.CDLL(str(tmp_path / "kernel.so"))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", {None: library}.__getitem__)


@pytest.mark.parametrize(("name", "value"), [("kern.small", 4), ("hw.large", 1 << 40), ("kern.none", None)])
@pytest.mark.usefixtures("kernel")
def test_sysctl(name: str, value: int | None) -> None:
    assert sysctl_int(name) == value


def test_no_sysctl_elsewhere() -> None:
    assert sysctl_int("kern.none") is None


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mac whose processor has a name, and which may translate this Python."""
    name, translated = request.param
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: name)
    monkeypatch.setattr(macos, "sysctl_int", {"sysctl.proc_translated": translated}.__getitem__)


ROSETTA = "is for Intel processors, and under Rosetta MLX does not run; make the environment again with one for arm64"
INTEL = "this Mac has an Intel processor, and MLX is for Apple Silicon"


@pytest.mark.parametrize(
    ("machine", "said"),
    [(("x86_64", 1), ROSETTA), (("x86_64", None), INTEL), (("x86_64", 0), INTEL)],
    indirect=["machine"],
)
@pytest.mark.usefixtures("machine")
def test_a_python_that_mlx_does_not_run_in_is_refused(said: str, tmp_path: Path) -> None:
    """By `agentmem up` and `agentmem doctor`, which check the same, and by the worker."""
    with pytest.raises(Mistake, match=said):
        check(load(UpSettings, ["--data", str(tmp_path / "data")]))
    with pytest.raises(FailedPrecondition, match=said):
        asyncio.run(_serve(load(WorkerSettings, []), asyncio.Event()))
    assert said in mend_import(ImportError("mach-o file, but is an incompatible architecture"))


@pytest.mark.parametrize("machine", [("arm64", 0)], indirect=True)
@pytest.mark.usefixtures("machine")
def test_one_for_arm64_is_fit() -> None:
    assert unfit_python() == ""


def test_other_systems_are_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert unfit_python() == ""
