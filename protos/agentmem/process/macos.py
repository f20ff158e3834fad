"""Facts about a Mac, and why MLX does not run on one."""

import ctypes
import platform
import re
import shlex
import sys
import sysconfig
from typing import Final

from agentmem.extras import install_mlx

_GATEKEEPER: Final = re.compile(r"disallowed by system policy|not valid for use in process|code signature")


def sysctl_int(name: str) -> int | None:
    """Return one of the kernel's integers; None elsewhere."""
    if sys.platform != "darwin":
        return None
    value = ctypes.c_int64(0)  # the kernel's are of 4 or 8 bytes, little-endian
    size = ctypes.c_size_t(ctypes.sizeof(value))
    into = ctypes.byref(value), ctypes.byref(size)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), *into, None, ctypes.c_size_t(0))
    return None if failed else value.value


def unfit_python() -> str:
    """Return why MLX has nothing for this process, after a semicolon what to do; or ""."""
    if sys.platform != "darwin" or platform.machine() == "arm64":
        return ""
    if sysctl_int("sysctl.proc_translated") != 1:
        return "this Mac has an Intel processor, and MLX is for Apple Silicon; use such a Mac, or Linux"
    return (
        f"this Python ({sys.executable}) is for Intel processors, and under Rosetta MLX does not run; make the "
        "environment again with one for arm64: that of Homebrew in /opt/homebrew (brew install python@3.12), or of uv "
        "from https://docs.astral.sh/uv (uv python install 3.12)"
    )


def mend_import(error: BaseException) -> str:
    """Return what to do about a library that cannot be imported."""
    if not _GATEKEEPER.search(str(error)):
        return unfit_python() or install_mlx()
    folder = shlex.quote(sysconfig.get_path("platlib"))
    return (
        f"macOS refuses libraries that came by a browser: xattr -dr com.apple.quarantine {folder} allows them; if it "
        f"still does, {install_mlx()}"
    )
