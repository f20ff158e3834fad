"""Bytes that malloc has given out, as glibc 2.33 and newer count them."""

import ctypes


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
    ] + [("keepcost", ctypes.c_size_t)]


def malloc_bytes() -> int | None:
    """Bytes that are given out and not freed, in all arenas and in mappings; None where it is not known.

    Python's small objects are in mappings of its own.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _Mallinfo
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)
