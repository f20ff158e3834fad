"""What stays of a memory that outgrows the model's context. Pure.

When: an appending turn's prompt leaves no room for its answer: `max_tokens`, but at most an eighth of the context.
Whole chats, texts and tokens are refused where they do not fit.

What: by the agent's ContextPolicy the turn is refused, the oldest whole turns go (`trim`), or a note that the model
writes takes their place (`summarize`). The opening stays, before the first user's message. Then comes the earliest turn
from which on everything fits half of the context, so that a token is computed again about once; or as much as fits.

Where: what stays begins with the header of a user's message; in templates that put the system prompt into it (Gemma,
Mistral), with the words after that header. A turn that begins otherwise goes with the turn before it.

The rest is computed again. The turn commits the cut, the carried turns, and itself, in one transaction; what the ledger
was stays as an automatic snapshot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from agentmem.kv.ledger import Ledger, TurnPlace, Uint32
from inference_service.text.prompt import Rendered, Span, inside_character
from inference_service.text.template import UserTurn

TARGET_SHARE = 0.5
"""A trimmed prompt's share of the context, where whole turns allow it."""
ANSWER_SHARE = 0.125
"""The largest share of the context that an answer can ask to be kept free."""
SUMMARY_SHARE = 0.0625
"""The summary's share of the context."""
MAX_SUMMARY_TOKENS = 512


class Bounds(NamedTuple):
    """Tokens of a trimmed prompt: at most, without its note at most, and at best without its note."""

    most: int
    limit: int
    target: int


@dataclass(frozen=True, eq=False)
class Trimmed:
    """A prompt that fits: `sequence`, which begins with `keep_tokens` tokens of the ledger and its `opening_bytes`.

    `carried_turns` are the ledger's, at their new places. `dropped` are the tokens that the note would be of. Position
    p after the cut is at p + `shift` now.
    """

    sequence: Uint32
    keep_tokens: int
    opening_bytes: int
    carried_turns: tuple[TurnPlace, ...]
    dropped_tokens: int
    dropped_turns: int
    dropped: int
    shift: int


class _Place(NamedTuple):
    """Where what stays may begin: a turn's first token, and the bytes of its header and of what the user says."""

    token: int
    header: int
    words: int


def room_for_answer(context_length: int, max_tokens: int) -> int:
    """Return the tokens that a turn needs for its answer."""
    return min(max_tokens, max(1, int(context_length * ANSWER_SHARE)))


def room_for_summary(context_length: int) -> int:
    """Return the tokens that a note of what was dropped may have."""
    return max(1, min(MAX_SUMMARY_TOKENS, int(context_length * SUMMARY_SHARE)))


def bounds(context_length: int, answer: int, summary: int = 0) -> Bounds:
    """Return the bounds of a prompt with a note of `summary` tokens, which leaves `answer` tokens free."""
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
    """Return the opening of `full`, `note`, and as many of its last turns as fit; None if not even the last one does.

    `full` is the ledger with what is appended, which begins at token `past_tokens` and always stays; `specials` are its
    special tokens. `user` is None without a template. `prefix_tokens` are what the tokenizer begins texts with.
    `encode` makes tokens of text that follows other text.
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
    """Return how many bytes of the text always stay: by default all before the first user's header."""
    past = full.text_end(past_tokens)
    if 0 < full.opening_bytes <= past:
        return full.opening_bytes
    if user is not None and user.header and (found := full.text.find(user.header, 0, past)) >= 0:
        return found
    return full.text_end(prefix_tokens) if prefix_tokens <= past_tokens else 0


def _places(full: Ledger, past_tokens: int, keep: int, user: UserTurn | None, with_header: bool) -> list[_Place]:
    """Return the turns that what stays may begin with, oldest first, without the first one. Raw texts may begin at
    each.
    """
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
    """Return whether what stays needs a header of its own: the opening may continue with another message."""
    return text.startswith(header, opening) or header not in text[:opening]


def _words(text: bytes, at: int, user: UserTurn) -> int | None:
    """Return where the user's words begin in a turn that begins at byte `at`."""
    whole = user.end + user.header
    for before in range(len(whole) + 1):
        if text.endswith(whole[:before], 0, at) and text.startswith(whole[before:], at):
            return at + len(whole) - before
    return None


def _part(full: Ledger, start: int, end: int, specials: Sequence[Span]) -> Rendered:
    """Return some of the ledger's text, with its special tokens."""
    inside = tuple(Span(s.start - start, s.end - start) for s in specials if start <= s.start and s.end <= end)
    return Rendered(full.text[start:end], inside, literal=True)


def _token_from(full: Ledger, at: int) -> int:
    """Return the first token that begins at byte `at` or after, and not inside a character."""
    token = int(np.searchsorted(full.offsets, at)) + 1 if at else 0
    while token < len(full) and inside_character(full.text, full.text_end(token)):
        token += 1
    return min(token, len(full))
