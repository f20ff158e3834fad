"""Trimming a memory that outgrows the context. Pure.

The oldest whole turns go, maybe for a note. The opening, before the first user's message, stays, then the earliest turn
from which on all fits half of the context, so that a token is computed again about once.

What stays begins with a user's header; where templates put the system prompt into that (Gemma, Mistral), with the words
after it. Other turns go with the one before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from agentmem.kv.ledger import Ledger, TurnPlace, Uint32
from inference_service.text.prompt import Rendered, Span, inside_character
from inference_service.text.template import UserTurn

TARGET_SHARE = 0.5
ANSWER_SHARE = 0.125
"""The most that an answer can ask to be kept free."""
SUMMARY_SHARE = 0.0625
MAX_SUMMARY_TOKENS = 512


class Bounds(NamedTuple):
    """At most, and without its note at most and at best."""

    most: int
    limit: int
    target: int


@dataclass(frozen=True, eq=False)
class Trimmed:
    """`carried_turns` are at new places. The note is of `dropped` tokens. Positions after the cut move by `shift`."""

    sequence: Uint32
    keep_tokens: int
    opening_bytes: int
    carried_turns: tuple[TurnPlace, ...]
    dropped_tokens: int
    dropped_turns: int
    dropped: int
    shift: int


class _Place(NamedTuple):
    token: int
    header: int
    words: int


def room_for_answer(context_length: int, max_tokens: int) -> int:
    return min(max_tokens, max(1, int(context_length * ANSWER_SHARE)))


def room_for_summary(context_length: int) -> int:
    return max(1, min(MAX_SUMMARY_TOKENS, int(context_length * SUMMARY_SHARE)))


def bounds(context_length: int, answer: int, summary: int = 0) -> Bounds:
    most = context_length - answer
    return Bounds(most, most - summary, min(most, int(context_length * TARGET_SHARE)) - summary)


def trimmed(
    full: Ledger,
    past_tokens: int,
    bounds: Bounds,
    user: UserTurn | None,
    specials: Sequence[Span],
    encode: Callable[[Rendered], Sequence[int]],
    *,
    prefix_tokens: int = 0,
    note: bytes = b"",
) -> Trimmed | None:
    """Return the opening of `full`, `note`, and as many of its last turns as fit. `full` includes what is appended,
    from `past_tokens` on; the tokenizer begins texts with `prefix_tokens`.
    """
    opening = _opening(full, past_tokens, user, prefix_tokens)
    keep = full.tokens_within(opening) if opening else 0
    places = _places(full, past_tokens, keep, user, user is not None and _with_header(full.text, opening, user.header))
    sizes = [(keep + len(full) - _token_from(full, place.header), place) for place in places]
    # The new tokens at the cut are not counted yet.
    fitting = [place for size, place in sizes if size <= bounds.target] or [
        p for size, p in sizes if size < bounds.limit
    ]
    if not fitting:
        return None
    place = fitting[0]
    start = _token_from(full, place.words if note else place.header)
    behind = full.text_end(start)
    seam = Rendered(full.text[full.text_end(keep) : opening], literal=True)
    seam += _part(full, place.header, min(place.words, behind), specials)
    seam += Rendered(note) + _part(full, min(place.words, behind), behind, specials)
    joined = np.asarray(encode(seam) if seam.text else (), np.uint32)
    sequence = np.concatenate([full.token_ids[:keep], joined, full.token_ids[start:]])
    if len(sequence) > bounds.most:
        return None
    shift = keep + len(joined) - start
    gone = [turn for turn in full.turns if turn.end_token <= place.token]
    return Trimmed(
        sequence=sequence,
        keep_tokens=keep,
        opening_bytes=opening,
        carried_turns=tuple(
            TurnPlace(turn.end_token + shift, turn.generated_tokens) for turn in full.turns[len(gone) :]
        ),
        dropped_tokens=max(0, place.token - keep),
        dropped_turns=len(gone),
        dropped=place.token,
        shift=shift,
    )


def _opening(full: Ledger, past_tokens: int, user: UserTurn | None, prefix_tokens: int) -> int:
    past = full.text_end(past_tokens)
    if 0 < full.opening_bytes <= past:
        return full.opening_bytes
    if user is not None and user.header and (found := full.text.find(user.header, 0, past)) >= 0:
        return found
    return full.text_end(prefix_tokens) if prefix_tokens <= past_tokens else 0


def _places(full: Ledger, past_tokens: int, keep: int, user: UserTurn | None, with_header: bool) -> list[_Place]:
    tokens = sorted({*(turn.end_token for turn in full.turns), past_tokens})
    begun = [(token, full.text_end(token)) for token in tokens if token > keep]
    found = (
        []
        if user is None
        else [
            _Place(token, words - len(user.header) * with_header, words)
            for token, at in begun
            if (words := _words(full.text, at, user)) is not None
        ]
    )
    return found or [_Place(token, at, at) for token, at in begun]


def _with_header(text: bytes, opening: int, header: bytes) -> bool:
    """The opening may continue with another message."""
    return text.startswith(header, opening) or header not in text[:opening]


def _words(text: bytes, at: int, user: UserTurn) -> int | None:
    whole = user.end + user.header
    for before in range(len(whole) + 1):
        if text.endswith(whole[:before], 0, at) and text.startswith(whole[before:], at):
            return at + len(whole) - before
    return None


def _part(full: Ledger, start: int, end: int, specials: Sequence[Span]) -> Rendered:
    inside = tuple(Span(s.start - start, s.end - start) for s in specials if start <= s.start and s.end <= end)
    return Rendered(full.text[start:end], inside, literal=True)


def _token_from(full: Ledger, at: int) -> int:
    """Return the first token from byte `at` on that is not inside a character."""
    token = int(np.searchsorted(full.offsets, at)) + 1 if at else 0
    while token < len(full) and inside_character(full.text, full.text_end(token)):
        token += 1
    return min(token, len(full))
