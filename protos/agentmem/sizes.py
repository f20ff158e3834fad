"""Bytes as people say them."""


def byte_size(count: int) -> str:
    """Bytes with a decimal unit: "9.4 MB"."""
    size, units = float(count), iter(("B", "kB", "MB", "GB"))
    for unit in units:
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
