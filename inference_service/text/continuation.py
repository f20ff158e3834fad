"""New messages rendered after stub conversations, and joined to the ledger.

Only the template knows how turns end and begin, and it may end a chat's last turn differently (`<|return|>`, an EOS,
nothing), so longer chats show what follows an answer:

    <|user|> question <|assistant|> the answer of the stub <|end|> <|user|> new message <|end|> <|assistant|>
                                                          └ opening ─┘
                                                          └ follow-up ─────────────────────────────────────┘

All follow-ups that begin with such a message share the opening. The ledger ends with a part of it, or with a stop token
that is dropped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from agentmem.errors import FailedPrecondition, InvalidArgument
from agentmem.kv.ledger import common_length
from inference_service.domain import MessagesInput
from inference_service.families.chats import CALL_ID
from inference_service.text.prompt import Rendered, Span, inside_character
from inference_service.text.template import Template, common_prefix
from inference_service.text.tokenizer import Tokenizer

_QUESTION = "the question of the stub"
_EARLIER = "an earlier answer of the stub"
_ANSWER = "the answer of the stub"
_OTHER_CONTENTS = ("one content of a stub", "another content of a stub")
_TOOL_ROLES = ("tool", "function", "ipython", "observation")
_TOOL_NAMES = ("stub_tool", "other_stub_tool")

_Message = Mapping[str, Any]
_Messages = tuple[_Message, ...]


class FollowUp(NamedTuple):
    """Text after a stub's last message; its `opening` does not depend on new messages. `generation_prompt` is 0 if
    unknown; `closing` is the text if nothing follows.
    """

    text: str
    opening: int
    generation_prompt: int
    closing: str = ""


class Joint(NamedTuple):
    """Bytes kept of the ledger, and the follow-up's start."""

    kept: int
    start: int


@dataclass(frozen=True)
class FollowUps:
    template: Template
    tokenizer: Tokenizer
    chat: MessagesInput
    generation_prompt: bool
    checkpoints: bool

    def all(self, *, answered: bool) -> Iterator[FollowUp]:
        """Yield follow-ups of an answer, a call and, unless `answered`, others.

        Raises FailedPrecondition if they depend on earlier messages, InvalidArgument if the template refuses all stubs.
        """
        refused: InvalidArgument | None = None
        found = False
        for short, long in _stubs(self.chat.messages[0], self._mark, answered):
            try:
                follow_up = self._behind(short, long)
                if follow_up is not None and not answered:
                    ended = self.template.render(replace(self.chat, messages=short))
                    follow_up = follow_up._replace(closing=ended.partition(self._mark)[2])
            except InvalidArgument as error:
                refused = refused or error
                continue
            except FailedPrecondition:
                if found:
                    continue
                raise
            if follow_up is not None:
                found = True
                yield follow_up
        if not found:
            raise refused or FailedPrecondition(
                "this model's template leaves earlier answers out; send the whole chat as messages"
            )

    def _behind(self, short: _Messages, long: _Messages) -> FollowUp | None:
        """Return what follows both stubs; None if their last message is not rendered."""
        new = self.chat.messages
        text = self._parts(short, new)[1]
        if not text:
            return None
        contents = [tuple({**message, "content": content} for message in new) for content in _OTHER_CONTENTS]
        one, other = (self._parts(short, messages) for messages in contents)
        if one[0] != other[0]:
            raise FailedPrecondition(
                "this model's template puts one of these messages before the conversation; send the whole chat as "
                "messages"
            )
        if self._parts(long, new)[1] != text:
            raise FailedPrecondition(
                "what this model's template makes of these messages depends on those before them; "
                + ("give the tool's message the name of the tool, or " if "tool_calls" in short[-1] else "")
                + "send the whole chat as messages"
            )
        start = 0
        if self.generation_prompt and self.checkpoints:
            whole = replace(self.chat, messages=(*short, *new))
            rendered = self.template.render(whole, generation_prompt=True)
            start = max(0, self.template.generation_prompt_start(whole, rendered) - len(rendered) + len(text))
        return FollowUp(text, min(len(common_prefix(text, made)) for _, made in (one, other)), start)

    def _parts(self, stub: _Messages, messages: _Messages) -> tuple[str, str]:
        """Return text before and after the stub's last content."""
        whole = replace(self.chat, messages=(*stub, *messages))
        rendered = self.template.render(whole, generation_prompt=self.generation_prompt)
        before, _, after = rendered.partition(self._mark)
        # The rest of a call is the model's own.
        first = next(self.tokenizer.special_spans(after), None) if "tool_calls" in stub[-1] else None
        return before, after if first is None else after[first[0] :]

    @cached_property
    def _mark(self) -> str:
        """Return a content that is nowhere in the chat."""
        mark, spelled = _ANSWER, repr((self.chat.messages, self.chat.tools, self.chat.template_arguments))
        while mark in spelled:
            mark += " again"
        return mark


def join(ledger: Rendered, following: Rendered, opening: int, closing: Rendered, *, answered: bool) -> Joint | None:
    """Return where the ledger's end meets a beginning of the first `opening` bytes.

    After `closing` it is cut where both differ. Generated ordinary text is the answer's.
    """
    size = len(ledger.text)
    if closing.text and ledger.ends_with(closing):
        common = _last_edge(closing, common_length(closing.text, following.text[:opening]))
        return Joint(size - len(closing.text) + common, common)
    shortest = min((span.end for span in following.specials), default=opening + 1) if answered else 1
    for end in range(opening, shortest - 1, -1):
        inside = any(span.start < end < span.end for span in following.specials)
        if inside or inside_character(following.text, end) or not ledger.text.endswith(following.text[:end]):
            continue
        if ledger.ends_with(Rendered(following.text[:end], tuple(s for s in following.specials if s.start < end))):
            return Joint(size, end)
    return None


def transient_stops(template: Template, tokenizer: Tokenizer) -> frozenset[int]:
    """Return stop tokens that do not stand after answers in longer conversations (GPT-OSS: `<|return|>`): in a ledger
    each next turn would drop one, and a whole turn with it.
    """
    result = {"role": "tool", "content": _OTHER_CONTENTS[0], "tool_call_id": CALL_ID}
    question = {"role": "user", "content": _OTHER_CONTENTS[0]}
    kept: set[int] = set()
    shown = False
    for stub, _ in _stubs(result, _ANSWER, True):
        called = "tool_calls" in stub[-1]
        try:
            text = template.render(MessagesInput((*stub, result if called else question)))
        except (FailedPrecondition, InvalidArgument):  # many templates know no tools
            continue
        _, found, after = text.partition(_ANSWER)
        shown |= bool(found) and not called
        between = after.partition(_OTHER_CONTENTS[0])[0]
        kept.update(tokenizer.special_id(between[start:end]) for start, end in tokenizer.special_spans(between))
    return tokenizer.eos_ids - kept if shown else frozenset()


def without_stop(ledger: Rendered, tokenizer: Tokenizer) -> Rendered:
    last = ledger.specials[-1] if ledger.specials else Span(0, 0)
    spelled = ledger.text[last.start : last.end].decode()
    if not spelled or last.end != len(ledger.text) or tokenizer.special_id(spelled) not in tokenizer.eos_ids:
        return ledger
    return Rendered(ledger.text[: last.start], ledger.specials[:-1])


def _last_edge(rendered: Rendered, at: int) -> int:
    """Return the last place where tokens surely meet."""
    edges = [0, len(rendered.text), *(edge for span in rendered.specials for edge in span)]
    return max(edge for edge in edges if edge <= at)


def _stubs(first: _Message, mark: str, answered: bool) -> Iterator[tuple[_Messages, _Messages]]:
    """Yield short and long conversations that end with `mark`, in the order to try."""
    question = {"role": "user", "content": _QUESTION}
    earlier = (question, {"role": "assistant", "content": _EARLIER})
    answer = {"role": "assistant", "content": mark}
    behind_answer = ((question, answer), (*earlier, question, answer))
    one, other = (_call(first, name, mark) for name in _TOOL_NAMES)
    behind_call = ((question, one), (*earlier, question, other))
    yield from (behind_call, behind_answer) if first["role"] in _TOOL_ROLES else (behind_answer, behind_call)
    if not answered:
        asked = {"role": "user", "content": mark}
        yield (asked,), (*earlier, asked)
        system = {"role": "system", "content": mark}
        yield (system,), (system,)


def _call(result: _Message, name: str, mark: str) -> _Message:
    function = {"name": result.get("name") or name, "arguments": {"stub": mark}}
    call = {"id": result.get("tool_call_id") or CALL_ID, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
