"""One point of the page's charts, of all models together, from an overview."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

from gateway.api.validation import Json

_REUSED: Final = ("hot", "warm", "remote")


def point(overview: Json) -> Json:
    """Values are of the overview's interval; null where nothing happened or is known."""
    models: list[Json] | None = overview["models"]
    prompt = _sums(each["prompt_tokens_per_second"] for each in models or ())
    blocks = _sums(each["pool_blocks"] for each in models or ())
    first = overview["time_to_first_token"]
    return {
        "time": overview["time"],
        "prompt_tokens_share": {tier: _share(prompt[tier], prompt.total()) for tier in _REUSED},
        "time_to_first_token_p50_seconds": {
            tier: first[tier]["p50_seconds"] if tier in first else None for tier in ("none", *_REUSED)
        },
        "generated_tokens_per_second": _sum(models, "generated_tokens_per_second"),
        "running": _sum(models, "running"),
        "waiting": _sum(models, "waiting"),
        "pool_used_share": _share(blocks["used"], blocks["used"] + blocks["free"]),
    }


def _sums(amounts: Iterable[Json | None]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in amounts:
        found.update(each or {})
    return found


def _sum(models: list[Json] | None, field: str) -> float | None:
    if models is None or any(each[field] is None for each in models):
        return None
    return math.fsum(each[field] for each in models)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
