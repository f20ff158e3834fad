"""Inputs as text: what the model's template makes of messages, and which parts of it may be special tokens.

User text never parses as a special token unless asked. Where a message contains the spelling of one, it is marked with
a Unicode noncharacter before rendering, so that after rendering the template's own special tokens and the user's
look-alikes can be told apart; the marks are removed and the look-alikes are tokenized as ordinary text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jinja2

from agentmem.errors import FailedPrecondition, InvalidArgument
from inference_service.domain import MessagesInput
from inference_service.text.checkpoints import before_cue, shared_beginning
from inference_service.text.tokenizer import Tokenizer

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
_STUB_ANSWER = "the answer of the stub"


class ChatTemplate(Protocol):
    """Renders messages; `apply_chat_template` of a Hugging Face tokenizer."""

    def __call__(self, messages: list[dict[str, Any]], **arguments: Any) -> str: ...


class Span(NamedTuple):
    """A byte range that is one special token."""

    start: int
    end: int


@dataclass(frozen=True)
class Rendered:
    """A prompt as text. `specials` are its special tokens, in order; all else is ordinary text.

    `literal` says that `text` also spells special tokens that are ordinary text, so that it must not be parsed whole.
    `checkpoints` are byte positions worth resuming at, in order: the end of what all chats with this system prompt have
    in common, and the end of the last message before the cue that makes the model answer. Raw text has none.
    """

    text: bytes
    specials: tuple[Span, ...] = ()
    literal: bool = False
    checkpoints: tuple[int, ...] = ()

    def __add__(self, other: "Rendered") -> "Rendered":
        size = len(self.text)
        return Rendered(
            self.text + other.text,
            self.specials + tuple(Span(s.start + size, s.end + size) for s in other.specials),
            self.literal or other.literal,
            self.checkpoints + tuple(at + size for at in other.checkpoints),
        )


class _Marked(NamedTuple):
    """A rendering that still has its marks, and its checkpoints in characters."""

    text: str
    checkpoints: tuple[int, ...] = ()


class Renderer:
    """Renders inputs for one model. `template` is None where the model has none. Thread-safe.

    `checkpoints` says that they are wanted: finding them costs as much again as rendering a chat.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, *, checkpoints: bool = True) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._checkpoints = checkpoints

    def text(self, text: str, *, parse_special: bool) -> Rendered:
        """A raw prompt, behind the BOS where the tokenizer adds one (and the text does not bring it)."""
        body = self._plain(text, parse_special=parse_special)
        prefix = self._tokenizer.prefix_ids
        start = Rendered(b"")
        for token_id in prefix:
            spelled = self._tokenizer.token_bytes(token_id)
            start += Rendered(spelled, (Span(0, len(spelled)),))
        begins_with_prefix = body.text.startswith(start.text) and body.specials[: len(prefix)] == start.specials
        return body if prefix and begins_with_prefix else start + body

    def messages(self, chat: MessagesInput, *, cue: bool, parse_special: bool) -> Rendered:
        """The whole chat. `cue` adds what makes the model answer."""

        def whole(marked: MessagesInput) -> _Marked:
            text = self._apply(marked, cue)
            if not self._checkpoints:
                return _Marked(text)
            shared = shared_beginning(self._apply, marked, text)
            return _Marked(text, (shared, before_cue(self._apply, marked, text) if cue else 0))

        return self._marked(chat, parse_special, whole)

    def continuation(self, ledger: Rendered, chat: MessagesInput, *, cue: bool, parse_special: bool) -> Rendered:
        """What `chat` adds to a conversation that exists, behind a missing end of turn.

        Rendered as what follows the answer of a stub chat with the new messages, less what follows it without them. A
        template that rewrites what comes before (Qwen 3 drops earlier reasoning) is no hindrance: the ledger stays as
        it is. Raises FailedPrecondition where even the end of the answer's turn depends on what follows.
        """
        if not ledger.text:
            return self.messages(chat, cue=cue, parse_special=parse_special)
        stub = ({"role": "user", "content": "the question of the stub"}, {"role": "assistant", "content": _STUB_ANSWER})

        def difference(marked: MessagesInput) -> _Marked:
            without = MessagesInput(stub, marked.tools, marked.template_arguments)
            whole = MessagesInput((*stub, *marked.messages), marked.tools, marked.template_arguments)
            _, _, end_of_turn = self._apply(without, False).partition(_STUB_ANSWER)
            rendered = self._apply(whole, cue)
            _, answered, following = rendered.partition(_STUB_ANSWER)
            if not answered or not following.startswith(end_of_turn):
                raise FailedPrecondition(
                    "this model's template rewrites earlier turns; send the whole chat as messages"
                )
            ending = _with_spans(end_of_turn, self._tokenizer.special_spans(end_of_turn), "")
            addition = missing_ending(ledger, ending) + following[len(end_of_turn) :]
            at = before_cue(self._apply, whole, rendered) if cue and self._checkpoints else 0
            return _Marked(addition, (max(0, at - len(rendered) + len(addition)),))

        return self._marked(chat, parse_special, difference)

    def appended_text(self, text: str, *, parse_special: bool) -> Rendered:
        """Raw text that follows the ledger."""
        return self._plain(text, parse_special=parse_special)

    def encode(self, rendered: Rendered, start: int = 0, *, continues: bool = False) -> list[int]:
        """Tokens of the rendered text from byte `start` on, which must not lie inside a character or special token.

        `continues` says that it follows other text, as in `Tokenizer.encode`.
        """
        encode, text = self._tokenizer.encode, rendered.text
        if not rendered.literal:
            return encode(text[start:].decode(), parse_special=True, continues=continues)
        token_ids: list[int] = []
        for span in (s for s in rendered.specials if s.start >= start):
            token_ids += encode(text[start : span.start].decode(), parse_special=False, continues=continues)
            token_ids.append(self._tokenizer.special_id(text[span.start : span.end].decode()))
            start, continues = span.end, False
        return token_ids + encode(text[start:].decode(), parse_special=False, continues=continues)

    def _plain(self, text: str, *, parse_special: bool) -> Rendered:
        spans = self._tokenizer.special_spans(text)
        if parse_special:
            return _with_spans(text, spans, "")
        return Rendered(text.encode(), literal=bool(spans))

    def _apply(self, chat: MessagesInput, cue: bool) -> str:
        if self._template is None:
            raise FailedPrecondition("this model has no chat template; send prompt or append.text instead of messages")
        arguments = dict(chat.template_arguments)
        if chat.tools:
            arguments["tools"] = [dict(tool) for tool in chat.tools]
        try:
            return self._template(
                [dict(m) for m in chat.messages], **arguments, add_generation_prompt=cue, tokenize=False
            )
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise InvalidArgument("messages", f"the model's chat template refuses them: {error}") from error

    def _marked(self, chat: MessagesInput, parse_special: bool, render: Callable[[MessagesInput], _Marked]) -> Rendered:
        if parse_special or not any(self._tokenizer.special_spans(text) for text in _strings(chat)):
            text, checkpoints = render(chat)
            return _with_spans(text, self._tokenizer.special_spans(text), "", checkpoints)
        mark = next((c for c in _NONCHARACTERS if not any(c in text for text in _strings(chat))), None)
        if mark is None:
            raise InvalidArgument("messages", "they contain special tokens and every Unicode noncharacter")
        text, checkpoints = render(self._with_marks(chat, mark))
        return _with_spans(text, self._tokenizer.special_spans(text), mark, checkpoints)

    def _with_marks(self, chat: MessagesInput, mark: str) -> MessagesInput:
        def walk(value: Any) -> Any:
            if isinstance(value, str):
                # Again and again, because a broken one may have hidden another. One character cannot be broken.
                while spans := [s for s in self._tokenizer.special_spans(value) if s[1] - s[0] > 1]:
                    for start, _ in reversed(spans):
                        value = value[: start + 1] + mark + value[start + 1 :]
                return value
            if isinstance(value, Mapping):
                return {walk(key): walk(item) for key, item in value.items()}
            return [walk(item) for item in value] if isinstance(value, list | tuple) else value

        return MessagesInput(tuple(walk(chat.messages)), tuple(walk(chat.tools)), walk(chat.template_arguments))


def missing_ending(ledger: Rendered, ending: Rendered) -> str:
    """What must be added to `ledger` so that it ends with `ending`.

    A special token is there whole or not at all: the beginning of its spelling, or its spelling as ordinary text, is
    not a part of it.
    """
    for size in range(len(ending.text), 0, -1):
        at = len(ledger.text) - size
        cut_inside = any(span.start < size < span.end for span in ending.specials)
        if cut_inside or inside_character(ending.text, size) or not ledger.text.endswith(ending.text[:size]):
            continue
        there = [Span(s.start - at, s.end - at) for s in ledger.specials if s.end > at]
        if there == [span for span in ending.specials if span.end <= size]:
            return ending.text[size:].decode()
    return ending.text.decode()


def inside_character(text: bytes, at: int) -> bool:
    """Whether a cut at byte `at` is inside a UTF-8 character of `text`."""
    return at < len(text) and text[at] & 0xC0 == 0x80


def _strings(value: Any) -> list[str]:
    if isinstance(value, MessagesInput):
        return _strings([value.messages, value.tools, value.template_arguments])
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for item in pair for text in _strings(item)]
    return [text for item in value for text in _strings(item)] if isinstance(value, list | tuple) else []


def _with_spans(text: str, spans: list[tuple[int, int]], mark: str, checkpoints: Sequence[int] = ()) -> Rendered:
    def unmarked(start: int, end: int) -> bytes:
        return (text[start:end].replace(mark, "") if mark else text[start:end]).encode()

    parts, specials, at, size = [], [], 0, 0
    for start, end in [*spans, (len(text), len(text))]:
        ordinary = unmarked(at, start)
        special = text[start:end].encode()
        parts += [ordinary, special]
        size += len(ordinary)
        if special:
            specials.append(Span(size, size + len(special)))
        size += len(special)
        at = end
    places = sorted({len(unmarked(0, each)) for each in checkpoints} - {0})
    return Rendered(b"".join(parts), tuple(specials), literal=bool(mark), checkpoints=tuple(places))
