"""Facts about a Mac, of a kernel that a small library in C plays."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.process.macos import sysctl_int

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
