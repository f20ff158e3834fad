"""Pieces of llguidance's dialect of Lark. Pure."""

import json
from collections.abc import Iterable


def literal(text: str) -> str:
    """Exactly this text."""
    return json.dumps(text, ensure_ascii=False)


def token_ranges(token_ids: Iterable[int]) -> str:
    """Any one of these tokens, special ones too; there is one at least."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(token_ids):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return f"<[{','.join(f'{low}-{high}' if low < high else f'{low}' for low, high in ranges)}]>"
