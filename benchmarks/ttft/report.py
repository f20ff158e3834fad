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
    "mlx_lm_cold": "mlx-lm cold",
    "mlx_lm_plain": "mlx-lm load_prompt_cache",
    "mlx_lm_4_bit": "mlx-lm load_prompt_cache, 4 bit",
}


def row(raw: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """One length's figures: samples in seconds by name, the first of several apart."""
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


def _faster(found: Mapping[str, Any]) -> str:
    return f"{found['cold']['median'] / found['warm']['median']:.1f}x" if "warm" in found else ""


def _note(figures: Mapping[str, Any]) -> str:
    restart, left = figures["restart"], figures["page_cache_left"]
    notes = []
    if "seconds" in restart:
        back, first = restart["seconds"]["median"], restart["first"]["median"]
        notes.append(f"Worker and store serve again {back:.1f} s after SIGKILL; their first turn takes {first:.2f} s.")
    if left > 0:
        notes.append(f"At most {left:.0%} of files that were dropped from the page cache was still there.")
    notes += [f"{_TIMES[name]} failed: {problem}." for name, problem in figures["failed"].items()]
    return " ".join(notes)
