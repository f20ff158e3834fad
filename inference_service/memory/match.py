"""The relation of a prompt to a ledger, by text: re-tokenized boundaries cost nothing."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from agentmem.kv.ledger import Ledger, TokenIds, common_length
from agentmem.v1 import types_pb2
from inference_service.text.prompt import Rendered, Span

Kind: TypeAlias = "types_pb2.Match.ValueType"
Reason: TypeAlias = "types_pb2.MissReason.ValueType"


class Matched(NamedTuple):
    kind: Kind
    keep_tokens: int
    reason: Reason = types_pb2.MISS_REASON_UNSPECIFIED


class MatchLimits(NamedTuple):
    """The paper's 80 % of the ledger is left out: a stripped reasoning block makes a good 10K prefix "77 %"."""

    min_tokens: int = 16
    most_tokens: int | None = None


def match_text(ledger: Ledger, ledger_specials: Sequence[Span], prompt: Rendered, min_tokens: int) -> Matched:
    """Compare text and special tokens; their spelling as text is none."""
    common = common_length(ledger.text, prompt.text)
    common = min(common, _first_difference(ledger_specials, prompt.specials, common))
    whole = common == len(ledger.text), common == len(prompt.text)
    return _matched(len(ledger), ledger.tokens_within(common), *whole, min_tokens)


def match_tokens(ledger: Ledger, token_ids: TokenIds, min_tokens: int) -> Matched:
    common = common_length(ledger.token_ids, token_ids)
    return _matched(len(ledger), common, common == len(ledger), common == len(token_ids), min_tokens)


def _matched(ledger_tokens: int, kept: int, ledger_is_common: bool, prompt_is_common: bool, min_tokens: int) -> Matched:
    if not ledger_tokens:
        return Matched(types_pb2.MATCH_NEW, 0, types_pb2.MISS_REASON_ABSENT)
    if ledger_is_common:
        if prompt_is_common:
            return Matched(types_pb2.MATCH_EXACT, ledger_tokens - 1)
        return Matched(types_pb2.MATCH_EXTEND, ledger_tokens)
    if kept < min_tokens:
        reason = types_pb2.MISS_REASON_BELOW_MIN if kept else types_pb2.MISS_REASON_DIVERGED
        return Matched(types_pb2.MATCH_DIVERGE, 0, reason)
    reason = types_pb2.MISS_REASON_UNSPECIFIED if prompt_is_common else types_pb2.MISS_REASON_DIVERGED
    return Matched(types_pb2.MATCH_PARTIAL, kept, reason)


def _first_difference(a: Sequence[Span], b: Sequence[Span], limit: int) -> int:
    """One that only an end cuts off does not differ."""
    for left, right in zip_longest(a, b):
        if left != right:
            return min(limit, *(span.start for span in (left, right) if span is not None))
    return limit
