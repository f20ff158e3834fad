"""One line of a turn, for people: what memory gave, and how long it took."""

from collections.abc import Iterable

from agentmem.v1 import types_pb2
from gateway.enums import short_name
from gateway.finish_reasons import cut_short
from gateway.memory_report import cached_tokens, tier_name

_REASON = types_pb2.FINISH_REASON_UNSPECIFIED


def turn_line(
    cache: types_pb2.CacheReport,
    usage: types_pb2.Usage,
    timings: types_pb2.Timings,
    *,
    reason: "types_pb2.FinishReason.ValueType" = _REASON,
    replayed: bool = False,
) -> str:
    """Match, tokens reused per tier, time to first token, tokens per second, and what was out of the ordinary.

    A turn in which nothing was generated has the time that its prefill took instead.
    """
    reused = f"reused {cached_tokens(usage):,} of {usage.prompt_tokens:,} tokens"
    tiers = ", ".join(f"{tier_name(part.tier)} {part.tokens:,}" for part in usage.cached)
    parts = [match_name(cache).upper(), f"{reused} ({tiers})" if tiers else reused]
    decode = timings.decode.ToTimedelta().total_seconds()
    if usage.completion_tokens:
        parts.append(f"first token {timings.time_to_first_token.ToTimedelta().total_seconds():.2f} s")
        if decode > 0:
            parts.append(f"{usage.completion_tokens / decode:.1f} tokens/s")
    else:
        parts.append(f"prefilled in {timings.prefill.ToTimedelta().total_seconds():.2f} s")
    missed = short_name(types_pb2.MissReason.DESCRIPTOR, cache.miss_reason)
    if missed and cache.match != types_pb2.MATCH_NEW:  # What is new is nowhere.
        parts.append(f"missed: {missed}")
    if cut_short(reason):
        parts.append("cut at the length limit")
    if replayed:
        parts.append("replayed")
    return " · ".join(part for part in parts if part)


def match_name(cache: types_pb2.CacheReport) -> str:
    """ "new", "exact", "extend", "partial" or "diverge"."""
    return short_name(types_pb2.Match.DESCRIPTOR, cache.match)


def tiers_of(cached: Iterable[types_pb2.TierTokens]) -> str:
    """The names of the tiers that tokens came from: "hot, warm"; "none" where none did."""
    return ", ".join(tier_name(part.tier) for part in cached if part.tokens) or "none"
