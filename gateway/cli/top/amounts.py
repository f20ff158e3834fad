"""Numbers as the view writes them. What is not known is a dash."""

from typing import Final

from agentmem.sizes import byte_size

UNKNOWN: Final = "–"


def count(value: int | None) -> str:
    """A whole number: "1,234"."""
    return UNKNOWN if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """Something per second: "0", "<0.01", "0.04", "3.2", "1,234"."""
    if value is None:
        return UNKNOWN
    if value < 0.01:
        return "<0.01" if value > 0 else "0"
    return f"{value:.2f}" if value < 0.095 else f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


def share(value: float | None) -> str:
    """A part of a whole: "93 %". Only the whole is "100 %", and only nothing "0 %"."""
    if value is None:
        return UNKNOWN
    percent = round(100 * value)
    percent = min(percent, 99) if value < 1 else percent
    return f"{max(percent, 1) if value > 0 else 0} %"


def time(seconds: float | None) -> str:
    """A short time: "0.8 ms", "25 ms", "1.2 s", "120 s"."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.00995:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:,.0f} s"


def size(value: float | None) -> str:
    """Bytes: "9.4 MB"."""
    return UNKNOWN if value is None else byte_size(int(value))
