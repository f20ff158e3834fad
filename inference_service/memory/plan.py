"""Which tokens of the ledger stay and which are new: from a match to the exact tokens that the model will see."""

from dataclasses import dataclass

from agentmem.v1 import types_pb2
from inference_service.memory.ledger import Ledger
from inference_service.memory.match import Kind, Limits, Matched, Reason, common_tokens, match_text, match_tokens
from inference_service.text.rendering import Rendered, Renderer, Span
from inference_service.text.tokenizer import Tokenizer

_BOUNDARY_WINDOW = 2048
_BOUNDARY_LOOKAHEAD = 256


@dataclass(frozen=True)
class Plan:
    """The prompt as `ledger.kept(keep_tokens)` followed by `new_ids`; at least one token is new.

    `sequence` is all of it. `keep_tokens` may be less than the match says: tokens at a cut are given back where whole
    tokenization would have split elsewhere, and the last token is always run again.
    """

    kind: Kind
    reason: Reason
    keep_tokens: int
    new_ids: tuple[int, ...]
    sequence: tuple[int, ...]


class Planner:
    """Makes plans for one model. Call it off the event loop: tokenizing takes milliseconds."""

    def __init__(self, tokenizer: Tokenizer, renderer: Renderer, limits: Limits) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._limits = limits

    def for_tokens(self, ledger: Ledger, token_ids: tuple[int, ...]) -> Plan:
        """A prompt that came as tokens."""
        matched = match_tokens(ledger, token_ids, self._limits)
        return _plan(matched, min(matched.keep_tokens, len(token_ids) - 1), token_ids)

    def for_append(self, ledger: Ledger, addition: Rendered) -> Plan:
        """The ledger and what follows it: EXTEND by construction, and no token of the ledger is given back."""
        new = tuple(self._renderer.encode(addition))
        kind = types_pb2.MATCH_EXTEND if len(ledger) else types_pb2.MATCH_NEW
        reason = types_pb2.MISS_REASON_UNSPECIFIED if len(ledger) else types_pb2.MISS_REASON_ABSENT
        return _plan(Matched(kind, len(ledger), reason), len(ledger), (*ledger.token_ids, *new))

    def for_text(self, ledger: Ledger, prompt: Rendered, *, heal_extension: bool) -> Plan:
        """A whole prompt as text. `heal_extension` is for raw prompts, which may go on in the middle of a word."""
        matched = match_text(ledger, self._specials(ledger), prompt, self._limits)
        keep = matched.keep_tokens
        if matched.kind == types_pb2.MATCH_PARTIAL or (matched.kind == types_pb2.MATCH_EXTEND and heal_extension):
            keep = self._healed(ledger, keep, prompt)
        keep = _back_to_character(ledger, keep, prompt.text)
        start = ledger.offsets[keep - 1] if keep else 0
        if start == len(prompt.text) and keep:
            keep -= 1
            sequence = ledger.token_ids[: keep + 1]
        else:
            sequence = (*ledger.token_ids[:keep], *self._renderer.encode(prompt, start))
        if self._tokenizer.decode(sequence) != prompt.text:
            # A tokenizer that rewrites text (normalizes, adds a space): only its own whole tokenization can be trusted.
            sequence = tuple(self._renderer.encode(prompt))
            keep = min(common_tokens(ledger.token_ids, sequence), len(sequence) - 1)
        return _plan(matched, keep, sequence)

    def _specials(self, ledger: Ledger) -> list[Span]:
        starts = (0, *ledger.offsets)
        special_ids = self._tokenizer.special_ids
        return [Span(starts[i], ledger.offsets[i]) for i, token in enumerate(ledger.token_ids) if token in special_ids]

    def _healed(self, ledger: Ledger, keep: int, prompt: Rendered) -> int:
        """Give tokens back to the last pre-token boundary of the prompt's own text."""
        keep = _back_to_character(ledger, keep, prompt.text)
        while keep:
            cut = ledger.offsets[keep - 1]
            boundary = self._boundary(prompt, cut)
            if boundary == cut:
                return keep
            while keep and ledger.offsets[keep - 1] > boundary:
                keep -= 1
        return keep

    def _boundary(self, prompt: Rendered, cut: int) -> int:
        """The last place at or before byte `cut` where whole tokenization of the prompt must split."""
        first = max((s.end for s in prompt.specials if s.end <= cut), default=0)
        last = min((s.start for s in prompt.specials if s.start >= cut), default=len(prompt.text))
        if cut in (first, last):
            return cut
        first = max(first, _character_start(prompt.text, max(0, cut - _BOUNDARY_WINDOW)))
        last = min(last, _character_start(prompt.text, min(len(prompt.text), cut + _BOUNDARY_LOOKAHEAD)))
        before = prompt.text[first:cut].decode()
        at = self._tokenizer.pre_token_boundary(before, prompt.text[cut:last].decode())
        return first + len(before[:at].encode())


def _plan(matched: Matched, keep: int, sequence: tuple[int, ...]) -> Plan:
    kind, reason = matched.kind, matched.reason
    if not keep and kind == types_pb2.MATCH_PARTIAL:
        kind, reason = types_pb2.MATCH_DIVERGE, types_pb2.MISS_REASON_DIVERGED
    return Plan(kind, reason, keep, sequence[keep:], sequence)


def _back_to_character(ledger: Ledger, keep: int, text: bytes) -> int:
    """Fewer tokens, so that the cut is not inside a character of `text`."""
    while keep and _inside_character(text, ledger.offsets[keep - 1]):
        keep -= 1
    return keep


def _inside_character(text: bytes, at: int) -> bool:
    return at < len(text) and text[at] & 0xC0 == 0x80


def _character_start(text: bytes, at: int) -> int:
    while _inside_character(text, at):
        at -= 1
    return at
