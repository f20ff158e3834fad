"""Tables of `ttft`. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.results import summary
from benchmarks.tables import Table, milliseconds

_TIMES = {
    "cold": "cold",
    "warm": "warm",
    "dropped": "warm, from the disk",
    "hot": "hot",
    "load": "KV loaded in",
    "raw": "mx.load",
    "mlx_lm_cold": "mlx-lm cold",
    "mlx_lm_plain": "mlx-lm load_prompt_cache",
    "mlx_lm_4_bit": "mlx-lm load_prompt_cache, 4 bit",
}
_SHORT = 1000
"""Below so many tokens the table says whether restoring is worth it."""


def row(raw: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return one length's figures: samples in seconds by name, the first of several apart."""
    return {
        name: {"warm_up": samples[0], **summary(samples[1:] if len(samples) > 1 else samples)}
        for name, samples in raw.items()
    }


def tables(figures: Mapping[str, Any]) -> list[Table]:
    where = f"{figures['model']}, {figures['backend'].upper()}"
    rows = [
        [f"{int(length):,}", *(milliseconds(found[name]) if name in found else "" for name in _TIMES), _faster(found)]
        for length, found in figures["lengths"].items()
    ]
    title = f"Time to first token, {figures['new_tokens']} new tokens ({where})"
    return [Table(title, ("tokens", *_TIMES.values(), "cold / warm"), rows, _note(figures))]


def break_even(lengths: Mapping[str, Any]) -> int | None:
    """Return the smallest length from which on restoring is faster in the median; None where there is none."""
    found = None
    for length in sorted(map(int, lengths), reverse=True):
        times = lengths[str(length)]
        if "warm" not in times or times["warm"]["median"] >= times["cold"]["median"]:
            break
        found = length
    return found


def _faster(found: Mapping[str, Any]) -> str:
    return f"{found['cold']['median'] / found['warm']['median']:.1f}x" if "warm" in found else ""


def _note(figures: Mapping[str, Any]) -> str:
    restart, left = figures["restart"], figures["page_cache_left"]
    notes = []
    if "seconds" in restart:
        back, first = restart["seconds"]["median"], restart["first"]["median"]
        notes.append(f"Worker and store serve again {back:.1f} s after SIGKILL; their first turn takes {first:.2f} s.")
    if min(map(int, figures["lengths"]), default=_SHORT) < _SHORT:
        found, default = break_even(figures["lengths"]), figures["min_restore_tokens"]
        worth = f"from {found:,} tokens on" if found else "at none of these lengths"
        notes.append(f"Restoring is worth it {worth}; the worker's min_restore_tokens is {default}.")
    if left > 0:
        notes.append(f"At most {left:.0%} of files that were dropped from the page cache was still there.")
    notes += [f"{_TIMES[name]} failed: {problem}." for name, problem in figures["failed"].items()]
    return " ".join(notes)
