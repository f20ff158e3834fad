"""Each service raises the limit of open files that it is started with."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys

import pytest

from agentmem.process import open_files
from agentmem.process.open_files import ENOUGH, raised

INFINITE = resource.RLIM_INFINITY
RAISE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(sys.argv[1])))
from agentmem.process.open_files import raised
print(raised(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("hard", [256, 300, 3000])
def test_up_to_the_hard_limit(hard: int) -> None:
    done = subprocess.run([sys.executable, "-c", RAISE, str(hard)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(hard)] * 3


class Kernel:
    """Limits as macOS has them: none by name, and yet no process gets more than `most`."""

    def __init__(self, soft: int, hard: int, most: int) -> None:
        self.limits = soft, hard
        self._most = most

    def getrlimit(self, _: int) -> tuple[int, int]:
        return self.limits

    def setrlimit(self, _: int, limits: tuple[int, int]) -> None:
        if not 0 < limits[0] <= self._most:
            raise ValueError(errno.EINVAL)
        self.limits = limits


@pytest.mark.parametrize(
    ("soft", "hard", "most", "told", "now"),
    [
        (256, INFINITE, 61_440, 61_440, 61_440),
        (256, INFINITE, 245_760, 245_760, ENOUGH),
        (256, INFINITE, 10_240, None, 10_240),
        (256, 8192, 61_440, 61_440, 8192),
        (256, INFINITE, 9000, None, 256),
        (INFINITE, INFINITE, 61_440, 61_440, ENOUGH),
        (200_000, 200_000, 61_440, 61_440, ENOUGH),
    ],
)
def test_as_many_as_macos_gives(
    soft: int, hard: int, most: int, told: int | None, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(soft, hard, most)
    monkeypatch.setattr(resource, "getrlimit", kernel.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", kernel.setrlimit)
    monkeypatch.setattr(open_files, "sysctl_int", {"kern.maxfilesperproc": told}.__getitem__)
    assert raised() == now
    assert kernel.limits == (soft if soft in (INFINITE, 200_000) else now, hard), "what is more stays"
