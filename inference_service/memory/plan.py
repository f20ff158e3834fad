"""From a match to the exact tokens that the model will see."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np

from agentmem.errors import InvalidArgument
from agentmem.kv.ledger import Ledger, TokenIds, Uint32, common_length
from agentmem.v1 import types_pb2
from inference_service.memory.match import Kind, Matched, MatchLimits, Reason, match_text, match_tokens
from inference_service.memory.trimming import Bounds, Trimmed, trimmed
from inference_service.text.prompt import Rendered, Span, inside_character
from inference_service.text.rendering import Renderer
from inference_service.text.tokenizer import Tokenizer

_BOUNDARY_WINDOW = 2048
"""Bytes. Neither this nor its double is a multiple of 3, by which some tokenizers group digits."""
_BOUNDARY_LOOKAHEAD = 256


@dataclass(frozen=True, eq=False)
class Plan:
    """A prompt [tokens] whose first `keep_tokens` are the ledger's: fewer than the match, if tokenization splits
    elsewhere at a cut; the last token is always run again.
    """

    kind: Kind
    reason: Reason
    keep_tokens: int
    sequence: Uint32
    checkpoints: tuple[int, ...] = ()
    trim: Trimmed | None = None

    @property
    def new_ids(self) -> Uint32:
        return self.sequence[self.keep_tokens :]


class Planner:
    """Plans for one model. Off the event loop."""

    def __init__(self, tokenizer: Tokenizer, renderer: Renderer, limits: MatchLimits) -> None:
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.limits = limits

    def fits(self, plan: Plan) -> bool:
        return self.limits.most_tokens is None or len(plan.sequence) <= self.limits.most_tokens

    def for_tokens(self, ledger: Ledger, token_ids: TokenIds) -> Plan:
        matched = match_tokens(ledger, token_ids, self.limits.min_tokens)
        return _plan(matched, matched.keep_tokens, token_ids)

    def for_append(self, ledger: Ledger, addition: Rendered, kept: int | None = None) -> Plan:
        """Plan an append: EXTEND, or PARTIAL if only `kept` bytes of the ledger stay."""
        keep = len(ledger) if kept is None else ledger.tokens_within(kept)
        kind, reason = types_pb2.MATCH_EXTEND, types_pb2.MISS_REASON_UNSPECIFIED
        if not len(ledger):
            kind, reason = types_pb2.MATCH_NEW, types_pb2.MISS_REASON_ABSENT
        elif keep < len(ledger):
            kind = types_pb2.MATCH_PARTIAL
        new = self.renderer.encode(addition, continues=bool(keep))
        pieces = self.tokenizer.pieces(new)
        inside: list[int] = []
        if addition.checkpoints and b"".join(pieces) == addition.text:
            ends = list(accumulate(map(len, pieces)))
            inside = [keep + bisect_right(ends, place) for place in addition.checkpoints]
        return _plan(Matched(kind, keep, reason), keep, _joined(ledger.token_ids[:keep], new), inside)

    def trimmed(self, ledger: Ledger, plan: Plan, bounds: Bounds, note: bytes = b"") -> Plan | None:
        """None if not even the last turn fits."""
        new = plan.new_ids.tolist()
        full = ledger.kept(past := plan.keep_tokens).followed_by(new, self.tokenizer.pieces(new), ledger.tokenizer_hash)
        turns = tuple(turn if turn.end_token <= past else turn.ending_at(past) for turn in ledger.turns)
        prefix = self.tokenizer.prefix_ids
        found = trimmed(
            replace(full, turns=turns),
            past,
            bounds,
            self.renderer.user_turn,
            self.specials(full),
            partial(self.renderer.encode, continues=True),
            prefix_tokens=len(prefix) if common_length(ledger.token_ids, prefix) == len(prefix) else 0,
            note=note,
        )
        if found is None:
            return None
        kind = types_pb2.MATCH_PARTIAL if found.keep_tokens else types_pb2.MATCH_DIVERGE
        reason = types_pb2.MISS_REASON_UNSPECIFIED if found.keep_tokens else types_pb2.MISS_REASON_DIVERGED
        checkpoints = (found.keep_tokens, *(at + found.shift for at in plan.checkpoints if at > past))
        matched = Matched(kind, found.keep_tokens, reason)
        return replace(_plan(matched, found.keep_tokens, found.sequence, checkpoints), trim=found)

    def for_text(self, ledger: Ledger, prompt: Rendered, *, heal_extension: bool) -> Plan:
        """`heal_extension`: a raw prompt may go on in the middle of a word."""
        matched = match_text(ledger, self.specials(ledger), prompt, self.limits.min_tokens)
        keep = matched.keep_tokens
        if matched.kind == types_pb2.MATCH_PARTIAL or (matched.kind == types_pb2.MATCH_EXTEND and heal_extension):
            keep = self._healed(ledger, keep, prompt)
        keep = _back_to_character(ledger, keep, prompt.text)
        start = ledger.text_end(keep)
        new: list[int] = []
        if start == len(prompt.text) and keep:
            keep -= 1
            new = [int(ledger.token_ids[keep])]
        else:
            new = self.renderer.encode(prompt, start, continues=self._continues(ledger, keep))
        pieces = self.tokenizer.pieces(new)
        if ledger.text[: ledger.text_end(keep)] + b"".join(pieces) != prompt.text:
            # A tokenizer that rewrites text: only its own whole tokenization can be trusted.
            return self.for_tokens(ledger, self.renderer.encode(prompt))
        sequence = _joined(ledger.token_ids[:keep], new)
        new_ends = ledger.text_end(keep) + np.cumsum([*map(len, pieces)], dtype=np.int64)
        ends = np.concatenate([ledger.offsets[:keep], new_ends])
        checkpoints = [int(np.searchsorted(ends, place, side="right")) for place in prompt.checkpoints]
        if keep or matched.kind in (types_pb2.MATCH_EXTEND, types_pb2.MATCH_EXACT):
            keep = common_length(ledger.token_ids, sequence)
        return _plan(matched, keep, sequence, checkpoints)

    def specials(self, ledger: Ledger) -> list[Span]:
        special = np.flatnonzero(np.isin(ledger.token_ids, [*self.tokenizer.special_ids]))
        return [Span(ledger.text_end(i), ledger.text_end(i + 1)) for i in special.tolist()]

    def _continues(self, ledger: Ledger, keep: int) -> bool:
        """Return whether no space of the tokenizer's own precedes the new text."""
        after_special = bool(keep) and int(ledger.token_ids[keep - 1]) in self.tokenizer.special_ids
        return bool(keep) and not (self.tokenizer.space_after_special and after_special)

    def _healed(self, ledger: Ledger, keep: int, prompt: Rendered) -> int:
        keep = _back_to_character(ledger, keep, prompt.text)
        remembered = Rendered(ledger.text, tuple(self.specials(ledger)))
        window = _BOUNDARY_WINDOW
        while keep:
            cut = ledger.text_end(keep)
            boundary = min(self._boundary(prompt, cut, window), self._boundary(remembered, cut, window))
            window *= 2  # linear in long runs
            if boundary == cut:
                return keep
            while keep and ledger.text_end(keep) > boundary:
                keep -= 1
            keep = _back_to_character(ledger, keep, prompt.text)
        return keep

    def _boundary(self, context: Rendered, cut: int, window: int) -> int:
        first = max((s.end for s in context.specials if s.end <= cut), default=0)
        last = min((s.start for s in context.specials if s.start >= cut), default=len(context.text))
        if cut in (first, last):
            return cut
        first = max(first, _character_start(context.text, max(0, cut - window)))
        last = min(last, _character_start(context.text, min(len(context.text), cut + _BOUNDARY_LOOKAHEAD)))
        before = context.text[first:cut].decode()
        at = self.tokenizer.pre_token_boundary(before, context.text[cut:last].decode(errors="replace"))
        return first + len(before[:at].encode())


def _plan(matched: Matched, keep: int, sequence: TokenIds, checkpoints: Sequence[int] = ()) -> Plan:
    if not len(sequence):
        raise InvalidArgument("input", "the model's tokenizer makes no tokens of it")
    kind, reason, keep = matched.kind, matched.reason, min(keep, len(sequence) - 1)
    if not keep and kind == types_pb2.MATCH_PARTIAL:
        kind, reason = types_pb2.MATCH_DIVERGE, types_pb2.MISS_REASON_DIVERGED
    places = tuple(sorted({at for at in checkpoints if 0 < at < len(sequence)}))
    return Plan(kind, reason, keep, np.asarray(sequence, np.uint32), places)


def _joined(kept: Uint32, new: Sequence[int]) -> Uint32:
    return np.concatenate([kept, np.asarray(new, np.uint32)])


def _back_to_character(ledger: Ledger, keep: int, text: bytes) -> int:
    while keep and inside_character(text, ledger.text_end(keep)):
        keep -= 1
    return keep


def _character_start(text: bytes, at: int) -> int:
    while inside_character(text, at):
        at -= 1
    return at
