"""Facts about a Mac."""

import ctypes
import sys


def sysctl_int(name: str) -> int | None:
    """Return one of the kernel's integers; None where there is none of the name, as on other systems."""
    if sys.platform != "darwin":
        return None
    value = ctypes.c_int64(0)  # the kernel's are of 4 or 8 bytes, little-endian
    size = ctypes.c_size_t(ctypes.sizeof(value))
    into = ctypes.byref(value), ctypes.byref(size)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), *into, None, ctypes.c_size_t(0))
    return None if failed else value.value
