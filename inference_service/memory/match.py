"""How a prompt relates to a ledger, by text, so that re-tokenized boundaries cost nothing."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeAlias, TypeVar

from agentmem.v1 import types_pb2
from inference_service.memory.ledger import Ledger
from inference_service.text.rendered import Rendered, Span

Kind: TypeAlias = "types_pb2.Match.ValueType"
Reason: TypeAlias = "types_pb2.MissReason.ValueType"

_S = TypeVar("_S", bytes, tuple[int, ...])


class Matched(NamedTuple):
    """The relation, how many of the ledger's tokens the prompt shares, and why not more if it matters."""

    kind: Kind
    keep_tokens: int
    reason: Reason = types_pb2.MISS_REASON_UNSPECIFIED


class Limits(NamedTuple):
    """From which length, and which share of the ledger, a common beginning is worth keeping.

    `min_ratio` is the paper's 0.8, off by default: a stripped reasoning block makes a good 10K prefix "77 %". A memory
    is gone on from as it is, with all that the template would leave out, up to `most_tokens`.
    """

    min_tokens: int = 16
    min_ratio: float = 0.0
    most_tokens: int | None = None


def match_text(ledger: Ledger, ledger_specials: Sequence[Span], prompt: Rendered, limits: Limits) -> Matched:
    """Compare text and special tokens: the spelling of a special token as ordinary text is not the special token."""
    common = common_length(ledger.text, prompt.text)
    common = min(common, _first_difference(ledger_specials, prompt.specials, common))
    return _matched(
        len(ledger),
        kept=bisect_right(ledger.offsets, common),
        ledger_is_common=common == len(ledger.text),
        prompt_is_common=common == len(prompt.text),
        ratio=common / max(1, len(ledger.text)),
        limits=limits,
    )


def match_tokens(ledger: Ledger, token_ids: tuple[int, ...], limits: Limits) -> Matched:
    """Compare tokens, for prompts that come as tokens."""
    common = common_length(ledger.token_ids, token_ids)
    return _matched(
        len(ledger),
        kept=common,
        ledger_is_common=common == len(ledger),
        prompt_is_common=common == len(token_ids),
        ratio=common / max(1, len(ledger)),
        limits=limits,
    )


def common_length(a: _S, b: _S) -> int:
    """Length of the common beginning. By comparing slices: one by one, a long context takes milliseconds."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _matched(
    ledger_tokens: int, *, kept: int, ledger_is_common: bool, prompt_is_common: bool, ratio: float, limits: Limits
) -> Matched:
    if not ledger_tokens:
        return Matched(types_pb2.MATCH_NEW, 0, types_pb2.MISS_REASON_ABSENT)
    if ledger_is_common:
        if prompt_is_common:
            return Matched(types_pb2.MATCH_EXACT, ledger_tokens - 1)
        return Matched(types_pb2.MATCH_EXTEND, ledger_tokens)
    if kept < limits.min_tokens:
        reason = types_pb2.MISS_REASON_BELOW_MIN if kept else types_pb2.MISS_REASON_DIVERGED
        return Matched(types_pb2.MATCH_DIVERGE, 0, reason)
    if ratio < limits.min_ratio:
        return Matched(types_pb2.MATCH_DIVERGE, 0, types_pb2.MISS_REASON_DIVERGED)
    return Matched(types_pb2.MATCH_PARTIAL, kept)


def _first_difference(a: Sequence[Span], b: Sequence[Span], limit: int) -> int:
    """Where the special tokens first differ, at most `limit`; those that only one side's end cuts off do not count."""
    for left, right in zip_longest(a, b):
        if left != right:
            return min(limit, *(span.start for span in (left, right) if span is not None))
    return limit
