"""Bytes for people."""


def byte_size(count: int) -> str:
    """Return bytes with a decimal unit: "9.4 MB"."""
    size, units = float(count), iter(("B", "kB", "MB", "GB"))
    for unit in units:
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def binary_size(count: int) -> str:
    """Return bytes with a binary unit and up to four digits: "1087 MiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 10_000:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB" if count < 10_000 else f"{count / 1024:.0f} TiB"
