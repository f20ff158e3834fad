"""Inputs as text: what the model's template makes of messages, and which parts of it may be special tokens.

User text never parses as a special token unless asked. Where a message contains the spelling of one, it is marked with
a Unicode noncharacter before rendering, so that after rendering the template's own special tokens and the user's
look-alikes can be told apart; the marks are removed and the look-alikes are tokenized as ordinary text.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jinja2

from agentmem.errors import FailedPrecondition, InvalidArgument
from inference_service.domain import MessagesInput
from inference_service.text.checkpoints import before_cue, beginning, shared_beginning
from inference_service.text.continuation import Joint, follow_ups, join, transient_stops, without_stop
from inference_service.text.openings import UserTurn, opening, user_turn
from inference_service.text.reasoning import ReasoningFormat
from inference_service.text.rendered import Rendered, Span
from inference_service.text.tokenizer import Tokenizer

_TEMPLATE_FAULTS = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class ChatTemplate(Protocol):
    """Renders messages; `apply_chat_template` of a Hugging Face tokenizer."""

    def __call__(self, messages: list[dict[str, Any]], **arguments: Any) -> str: ...


class Continuation(NamedTuple):
    """What is added to a ledger, and how many bytes of it stay: all but what ends a chat and no turn within one."""

    kept: int
    addition: Rendered


class Renderer:
    """Renders inputs for one model. `template` is None where the model has none. Thread-safe.

    `checkpoints` says that they are wanted: finding them costs as much again as rendering a chat. What cannot fit twice
    into `context_length` is refused before work is spent on it (FailedPrecondition); less may fit when it is trimmed,
    and is counted. `reasoning` is how the model sets its reasoning apart from its answers, where it does.
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

        marked, mark = self._with_mark(chat, parse_special)
        text = self._apply(marked, cue)
        self._check_length(_unmarked(text, mark))
        if not self._checkpoints:
            return self._rendered(text, mark)
        shared = shared_beginning(self._apply, marked, text)
        return self._rendered(text, mark, (shared, before_cue(self._apply, marked, text) if cue else 0))

    def beginning(self, chat: MessagesInput, *, parse_special: bool) -> Rendered:
        """What all chats with the system messages and tools of `chat` begin with, up to the first user's words.

        Empty where the template refuses to say.
        """
        marked, mark = self._with_mark(chat, parse_special)
        return self._rendered(beginning(self._apply, marked), mark)

    def continuation(
        self, ledger: Rendered, chat: MessagesInput, *, cue: bool, parse_special: bool, answered: bool = True
    ) -> Continuation:
        """What `chat` adds to a conversation that exists, behind a missing end of turn.

        Rendered as what follows an answer in chats of stubs that go on with the new messages. A template that rewrites
        what comes before (Qwen 3 drops earlier reasoning) is no hindrance: the ledger stays as it is. Only a stop token
        at its end that history has not (`<|return|>`) is not kept. `answered` says that the ledger ends with what a
        model generated; otherwise it may end with another message, or with what ends a chat.

        Raises FailedPrecondition where what is added depends on the conversation before, or is rendered before it.
        """
        if not ledger.text:
            return Continuation(0, self.messages(chat, cue=cue, parse_special=parse_special))
        marked, mark = self._with_mark(chat, parse_special)
        before = without_stop(ledger, self._tokenizer) if answered else ledger
        first: Continuation | None = None
        options = {"cue": cue, "checkpoints": self._checkpoints, "answered": answered}
        for each in follow_ups(self._apply, self._tokenizer, marked, **options):
            following = self._rendered(each.text, mark, (each.cue,))
            opening = len(_unmarked(each.text[: each.opening], mark))
            closing = self._rendered(each.closing, "")
            joint = join(ledger, following, opening, closing, answered=answered)
            # What an ordinary text ends with may be in an opening by chance.
            if joint is not None and any(span.end <= joint.start for span in following.specials):
                return Continuation(joint.kept, following.behind(joint.start))
            if first is None:
                joint = joint or join(before, following, opening, closing, answered=answered)
                kept, start = joint or Joint(len(before.text), 0)
                first = Continuation(kept, following.behind(start))
            if answered and before is ledger:
                break  # Nothing ended the answer, so it need not be found what did.
        assert first is not None, "follow_ups raises where it finds none"
        return first

    @cached_property
    def user_turn(self) -> UserTurn | None:
        """How the template goes on from an answer to the next user's message; None without a template."""
        return user_turn(self._apply)

    @cached_property
    def transient_stops(self) -> frozenset[int]:
        """Stop tokens that the template leaves out once a conversation goes on; none without a template."""
        return frozenset() if self._template is None else transient_stops(self._apply, self._tokenizer)

    def opening(self, chat: MessagesInput, *, parse_special: bool) -> bytes:
        """What the chat's rendering begins with before the first user's message; b"" if it is not known."""
        marked, mark = self._with_mark(chat, parse_special)
        return self._rendered(opening(self._apply, marked, self.user_turn), mark).text

    def appended_text(self, text: str, *, parse_special: bool) -> Rendered:
        """Raw text that follows the ledger."""
        return self._plain(text, parse_special=parse_special)

    def encode(self, rendered: Rendered, start: int = 0, *, continues: bool = False) -> list[int]:
        """Tokens of the rendered text from byte `start` on, which must not lie inside a character or special token.

        `continues` says that it follows other text, as in `Tokenizer.encode`.
        """
        text, enough = rendered.text, self._enough

        def encode(end: int | None, *, parse_special: bool) -> list[int]:
            ordinary = text[start:end].decode()
            return self._tokenizer.encode(ordinary, parse_special=parse_special, continues=continues, enough=enough)

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
        """Refuse a prompt that has more tokens than are counted."""
        if self._enough is not None and tokens > self._enough:
            raise self._too_long()

    @property
    def _enough(self) -> int | None:
        return None if self._context_length is None else 2 * self._context_length

    def _check_length(self, text: bytes) -> bytes:
        if self._enough is not None and self._tokenizer.certainly_exceeds(text, self._enough):
            raise self._too_long()
        return text

    def _too_long(self) -> FailedPrecondition:
        return FailedPrecondition(
            f"the prompt has more than {self._enough} tokens and the model's context holds {self._context_length}; "
            "shorten it"
        )

    def _plain(self, text: str, *, parse_special: bool) -> Rendered:
        if parse_special:
            return self._rendered(text, "")
        return Rendered(self._check_length(text.encode()), literal=self._tokenizer.has_special(text))

    def _rendered(self, text: str, mark: str, checkpoints: Sequence[int] = ()) -> Rendered:
        """What a template made, without the mark, which special tokens of its own do not have."""
        self._check_length(_unmarked(text, mark))
        parts, specials, at, size = [], [], 0, 0
        for start, end in [*self._tokenizer.special_spans(text), (len(text), len(text))]:
            ordinary = _unmarked(text[at:start], mark)
            special = text[start:end].encode()
            parts += [ordinary, special]
            size += len(ordinary)
            if special:
                specials.append(Span(size, size + len(special)))
            size += len(special)
            at = end
        places = sorted({len(_unmarked(text[:each], mark)) for each in checkpoints} - {0})
        return Rendered(b"".join(parts), tuple(specials), literal=bool(mark), checkpoints=tuple(places))

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
        except _TEMPLATE_FAULTS as error:
            raise InvalidArgument("messages", f"the model's chat template refuses them: {error}") from error

    def _with_mark(self, chat: MessagesInput, parse_special: bool) -> tuple[MessagesInput, str]:
        """The chat to render, and the mark that is in its spellings of special tokens; "" if there are none."""
        if parse_special or not any(map(self._tokenizer.has_special, _strings(chat))):
            return chat, ""
        mark = next((c for c in _NONCHARACTERS if not any(c in text for text in _strings(chat))), None)
        if mark is None:
            raise InvalidArgument("messages", "they contain special tokens and every Unicode noncharacter")
        return self._with_marks(chat, mark), mark

    def _with_marks(self, chat: MessagesInput, mark: str) -> MessagesInput:
        def walk(value: Any) -> Any:
            if isinstance(value, str):
                # Again and again, because a broken one may have hidden another. One character cannot be broken.
                while (broken := self._tokenizer.break_specials(value, mark)) != value:
                    value = broken
                return value
            if isinstance(value, Mapping):
                return {walk(key): walk(item) for key, item in value.items()}
            return [walk(item) for item in value] if isinstance(value, list | tuple) else value

        return MessagesInput(tuple(walk(chat.messages)), tuple(walk(chat.tools)), walk(chat.template_arguments))


def _strings(value: Any) -> list[str]:
    if isinstance(value, MessagesInput):
        return _strings([value.messages, value.tools, value.template_arguments])
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for item in pair for text in _strings(item)]
    return [text for item in value for text in _strings(item)] if isinstance(value, list | tuple) else []


def _unmarked(text: str, mark: str) -> bytes:
    return (text.replace(mark, "") if mark else text).encode()
