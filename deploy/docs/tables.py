"""Tables and cells of Markdown."""

from collections.abc import Iterable, Sequence


def cell(text: object) -> str:
    """Return `text` as one line that fits a table's cell."""
    return " ".join(str(text).split()).replace("|", "\\|")


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table, or "" for no rows."""
    lines = ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", *lines, ""])
