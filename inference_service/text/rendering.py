"""Inputs as text, and special tokens in it.

User text never parses as a special token unless asked: spellings are marked with a Unicode noncharacter while the
template renders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from agentmem import jsontext
from agentmem.errors import ContextExceeded, InvalidArgument
from inference_service.domain import MessagesInput
from inference_service.text.continuation import FollowUps, Joint, join, transient_stops, without_stop
from inference_service.text.prompt import Rendered, Span
from inference_service.text.reasoning import ReasoningFormat
from inference_service.text.template import ChatTemplate, Template, UserTurn
from inference_service.text.tokenizer import Tokenizer

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Continuation(NamedTuple):
    """Bytes of a ledger that stay, and the addition."""

    kept: int
    addition: Rendered


class Renderer:
    """Thread-safe. Finding `checkpoints` costs as much as rendering. Input longer than twice `context_length` raises
    ContextExceeded; shorter may fit once trimmed.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        checkpoints: bool = True,
        context_length: int | None = None,
        reasoning: ReasoningFormat | None = None,
    ) -> None:
        self.reasoning = reasoning
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._most_tokens = None if context_length is None else 2 * context_length
        self._template = Template(template)
        self._checkpoints = checkpoints

    def text(self, text: str, *, parse_special: bool) -> Rendered:
        """Return a raw prompt, with one BOS if the tokenizer adds it."""
        body = self.appended_text(text, parse_special=parse_special)
        prefix = self._tokenizer.prefix_ids
        start = Rendered(b"")
        for token_id in prefix:
            spelled = self._tokenizer.token_bytes(token_id)
            start += Rendered(spelled, (Span(0, len(spelled)),))
        begins_with_prefix = body.text.startswith(start.text) and body.specials[: len(prefix)] == start.specials
        return body if prefix and begins_with_prefix else start + body

    def appended_text(self, text: str, *, parse_special: bool) -> Rendered:
        if parse_special:
            return self._rendered(text, "")
        self._check_length(text.encode())
        return Rendered(text.encode(), literal=self._tokenizer.has_special(text))

    def messages(self, chat: MessagesInput, *, generation_prompt: bool, parse_special: bool) -> Rendered:
        marked, mark = self._with_mark(chat, parse_special)
        text = self._template.render(marked, generation_prompt=generation_prompt)
        if not self._checkpoints:
            return self._rendered(text, mark)
        self._check_length(_unmarked(text, mark))
        checkpoints = [self._template.system_prefix_length(marked, text)]
        if generation_prompt:
            checkpoints.append(self._template.generation_prompt_start(marked, text))
        return self._rendered(text, mark, checkpoints)

    def system_prefix(self, chat: MessagesInput, *, parse_special: bool, answered: bool = False) -> Rendered:
        """Return the common beginning of chats with these system messages and tools, new or `answered`; empty if
        unknown.
        """
        marked, mark = self._with_mark(chat, parse_special)
        return self._rendered(self._template.system_prefix(marked, answered=answered), mark)

    def opening(self, chat: MessagesInput, *, parse_special: bool) -> bytes:
        """Return text before the first user's message; b"" if unknown."""
        marked, mark = self._with_mark(chat, parse_special)
        return self._rendered(self._template.opening(marked), mark).text

    def continuation(
        self,
        ledger: Rendered,
        chat: MessagesInput,
        *,
        generation_prompt: bool,
        parse_special: bool,
        answered: bool = True,
    ) -> Continuation:
        """Return what `chat` adds after a missing end of turn.

        The ledger stays, whatever templates rewrite, but for a stop token that history does not have (`<|return|>`).
        Unless `answered`, it may end with another message, or with what ends a chat. Raises FailedPrecondition if the
        addition depends on earlier messages.
        """
        if not ledger.text:
            whole = self.messages(chat, generation_prompt=generation_prompt, parse_special=parse_special)
            return Continuation(0, whole)
        marked, mark = self._with_mark(chat, parse_special)
        before = without_stop(ledger, self._tokenizer) if answered else ledger
        first: Continuation | None = None
        follow_ups = FollowUps(self._template, self._tokenizer, marked, generation_prompt, self._checkpoints)
        for each in follow_ups.all(answered=answered):
            following = self._rendered(each.text, mark, (each.generation_prompt,))
            opening = len(_unmarked(each.text[: each.opening], mark))
            closing = self._rendered(each.closing, "")
            joint = join(ledger, following, opening, closing, answered=answered)
            # Ordinary text may end like an opening by chance.
            if joint is not None and any(span.end <= joint.start for span in following.specials):
                return Continuation(joint.kept, following.behind(joint.start))
            if first is None:
                joint = joint or join(before, following, opening, closing, answered=answered)
                kept, start = joint or Joint(len(before.text), 0)
                first = Continuation(kept, following.behind(start))
            if answered and before is ledger:
                break  # nothing ended the answer
        assert first is not None, "FollowUps.all raises where it finds none"
        return first

    @property
    def user_turn(self) -> UserTurn | None:
        return self._template.user_turn

    @cached_property
    def transient_stops(self) -> frozenset[int]:
        """Stop tokens dropped in longer conversations."""
        return transient_stops(self._template, self._tokenizer)

    def encode(self, rendered: Rendered, start: int = 0, *, continues: bool = False) -> list[int]:
        """Return tokens from byte `start`; `continues` as in `Tokenizer.encode`."""
        text = rendered.text

        def encode(end: int | None, *, parse_special: bool) -> list[int]:
            part, most = text[start:end].decode(), self._most_tokens
            return self._tokenizer.encode(part, parse_special=parse_special, continues=continues, enough=most)

        if not rendered.literal:
            token_ids = encode(None, parse_special=True)
        else:
            token_ids = []
            for span in (s for s in rendered.specials if s.start >= start):
                token_ids += encode(span.start, parse_special=False)
                token_ids.append(self._tokenizer.special_id(text[span.start : span.end].decode()))
                start, continues = span.end, not self._tokenizer.space_after_special
                self.check_tokens(len(token_ids))
            token_ids += encode(None, parse_special=False)
        self.check_tokens(len(token_ids))
        return token_ids

    def check_tokens(self, tokens: int) -> None:
        """Raise ContextExceeded for more tokens than are counted."""
        if self._context_length is not None and self._most_tokens is not None and tokens > self._most_tokens:
            raise ContextExceeded(
                f"the prompt has more than {self._most_tokens} tokens and the model's context holds "
                f"{self._context_length}; shorten it",
                tokens,
                self._context_length,
            )

    def _check_length(self, text: bytes) -> None:
        if self._most_tokens is not None and self._tokenizer.certainly_exceeds(text, self._most_tokens):
            self.check_tokens(self._most_tokens + 1)

    def _rendered(self, text: str, mark: str, checkpoints: Sequence[int] = ()) -> Rendered:
        self._check_length(_unmarked(text, mark))
        parts, specials, at, size = [], [], 0, 0
        for start, end in chain(self._tokenizer.special_spans(text), [(len(text), len(text))]):
            ordinary = _unmarked(text[at:start], mark)
            special = text[start:end].encode()
            parts += [ordinary, special]
            size += len(ordinary)
            if special:
                specials.append(Span(size, size + len(special)))
                self.check_tokens(len(specials))
            size += len(special)
            at = end
        places = sorted({len(_unmarked(text[:each], mark)) for each in checkpoints} - {0})
        return Rendered(b"".join(parts), tuple(specials), literal=bool(mark), checkpoints=tuple(places))

    def _with_mark(self, chat: MessagesInput, parse_special: bool) -> tuple[MessagesInput, str]:
        """Mark spellings of special tokens, if any."""
        said = (chat.messages, chat.tools, chat.template_arguments)
        if parse_special or not any(map(self._tokenizer.has_special, jsontext.strings(said))):
            return chat, ""
        mark = next((c for c in _NONCHARACTERS if not any(c in text for text in jsontext.strings(said))), None)
        if mark is None:
            raise InvalidArgument("messages", "they contain special tokens and every Unicode noncharacter")

        def marked(value: Any) -> Any:
            if isinstance(value, str):
                # Repeated, because a broken one may have hidden another.
                while (broken := self._tokenizer.break_specials(value, mark)) != value:
                    value = broken
                return value
            if isinstance(value, Mapping):
                return {marked(key): marked(item) for key, item in value.items()}
            return [*map(marked, value)] if isinstance(value, list | tuple) else value

        messages, tools, arguments = map(marked, said)
        return replace(chat, messages=tuple(messages), tools=tuple(tools), template_arguments=arguments), mark


def _unmarked(text: str, mark: str) -> bytes:
    return (text.replace(mark, "") if mark else text).encode()
