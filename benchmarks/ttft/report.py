"""What the figures of `ttft` say: its tables. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.results import summary
from benchmarks.tables import Table, milliseconds

_RATIOS = {
    "warm_over_parts": ("warm", ("read", "prefill", "step")),
    "dropped_over_parts": ("dropped", ("read_dropped", "prefill", "step")),
    "hot_over_parts": ("hot", ("prefill", "step")),
}
_TIMES = {
    "cold": "cold",
    "warm": "warm",
    "dropped": "warm, from the disk",
    "hot": "hot",
    "mlx_lm_cold": "mlx-lm cold",
    "mlx_lm_plain": "mlx-lm load_prompt_cache",
    "mlx_lm_4_bit": "mlx-lm load_prompt_cache, 4 bit",
}
_PARTS = {
    "read": "read",
    "prefill": "prefill",
    "step": "step",
    "warm": "warm",
    "warm_load": "of it load",
    "warm_prefill": "of it prefill",
    "hash": "hash",
    "engine": "engine alone",
}


def row(raw: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """One length's figures: samples in seconds by name, the first of several apart, and ratios within each round."""
    kept = {name: list(samples[1:] if len(samples) > 1 else samples) for name, samples in raw.items()}
    found = {name: {"warm_up": raw[name][0], **summary(samples)} for name, samples in kept.items()}
    for name, (whole, parts) in _RATIOS.items():
        if all(part in kept for part in (whole, *parts)):
            rounds = zip(kept[whole], *(kept[part] for part in parts), strict=False)
            found[name] = summary([first / sum(rest) for first, *rest in rounds])
    return found


def tables(figures: Mapping[str, Any]) -> list[Table]:
    """Time to first token; the parts and what verifying takes; and what a file costs."""
    by_length = figures["lengths"]
    new = figures["new_tokens"]
    return [
        Table(
            f"Time to first token, {new} new tokens ({_where(figures)})",
            ("tokens", *_TIMES.values(), "cold / warm"),
            [[_tokens(length), *_cells(found, _TIMES), _faster(found)] for length, found in by_length.items()],
            _note(figures),
        ),
        Table(
            f"A warm turn and its parts ({_where(figures)})",
            ("tokens", "bytes", *_PARTS.values(), "warm / parts", "from the disk / parts", "hot / parts"),
            [
                [
                    _tokens(length),
                    _megabytes(found, "agentmem"),
                    *_cells(found, _PARTS),
                    *(_ratio(found, name) for name in _RATIOS),
                ]
                for length, found in by_length.items()
            ],
            f"Parts: reading the agent's files into MLX arrays, computing {new} tokens, decoding one. A hot turn has "
            "no reading. Hashing is shown for one thread and is in no sum. Engine alone: the last two in one go.",
        ),
        Table(
            f"The same from files of mlx-lm ({_where(figures)})",
            (
                "tokens",
                "agentmem",
                "its bytes",
                "plain",
                "bytes",
                "4 bit",
                "bytes",
                "agentmem dropped",
                "plain dropped",
                "4 bit dropped",
            ),
            [
                [
                    _tokens(length),
                    *(
                        cell
                        for time, kind in (("warm", "agentmem"), ("mlx_lm_plain", "plain"), ("mlx_lm_4_bit", "4 bit"))
                        for cell in (_cell(found, time), _megabytes(found, kind))
                    ),
                    *(_cell(found, name) for name in ("dropped", "mlx_lm_plain_dropped", "mlx_lm_4_bit_dropped")),
                ]
                for length, found in by_length.items()
            ],
            "agentmem's is through gateway, worker and store, verified and committed; mlx-lm's is in one process.",
        ),
    ]


def _cells(found: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    return [_cell(found, name) for name in names]


def _cell(found: Mapping[str, Any], name: str) -> str:
    return milliseconds(found[name]) if name in found else ""


def _ratio(found: Mapping[str, Any], name: str) -> str:
    return f"{found[name]['median']:.2f}x" if name in found else ""


def _faster(found: Mapping[str, Any]) -> str:
    return f"{found['cold']['median'] / found['warm']['median']:.1f}x" if "warm" in found else ""


def _megabytes(found: Mapping[str, Any], kind: str) -> str:
    return f"{found['bytes'][kind] / 1e6:.1f} MB" if kind in found.get("bytes", {}) else ""


def _tokens(length: str) -> str:
    return f"{int(length):,}"


def _where(figures: Mapping[str, Any]) -> str:
    return f"{figures['model']}, {figures['backend'].upper()}"


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
