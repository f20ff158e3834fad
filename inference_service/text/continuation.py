"""What new messages add to a conversation that exists: rendered behind stub conversations, and joined to the ledger.

Only the template knows how a turn ends and how the next one begins, and it may end the last turn of a chat in another
way than those before (`<|return|>`, an EOS, or nothing), so what follows an answer is taken from chats that go on:

    <|user|> question <|assistant|> the answer of the stub <|end|> <|user|> new message <|end|> <|assistant|>
                                                          └ opening ─┘
                                                          └ follow-up ─────────────────────────────────────┘

The opening is what all follow-ups that begin with such a message have in common. The ledger ends with as much of it as
the model generated, or with a stop token that the template does not have there: that one is not kept.
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
    """What a template puts behind the last message of a stub.

    `opening` is how many characters of `text` are the same whatever the new messages say, and `generation_prompt` where
    that begins (0 if there is none or it isn't known). `closing` is what the template puts there if nothing follows; it
    is left out where the ledger ends with an answer, which is not rendered.
    """

    text: str
    opening: int
    generation_prompt: int
    closing: str = ""


class Joint(NamedTuple):
    """Where ledger and follow-up meet: how many bytes of the ledger stay, and where to begin in the follow-up."""

    kept: int
    start: int


@dataclass(frozen=True)
class FollowUps:
    """Renders the new messages of `chat` behind stub conversations.

    `checkpoints` says that it is wanted where the generation prompt begins.
    """

    template: Template
    tokenizer: Tokenizer
    chat: MessagesInput
    generation_prompt: bool
    checkpoints: bool

    def all(self, *, answered: bool) -> Iterator[FollowUp]:
        """Yield what the chat adds behind an answer, behind a call and, unless the ledger is `answered`, behind others.

        Raises FailedPrecondition where that depends on the conversation before, and InvalidArgument where the template
        refuses the messages behind every stub.
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
        """Return what follows both stubs; None where the template does not render their last message."""
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
        """Return what the template puts before the stub's last content, and what behind it."""
        whole = replace(self.chat, messages=(*stub, *messages))
        rendered = self.template.render(whole, generation_prompt=self.generation_prompt)
        before, _, after = rendered.partition(self._mark)
        # Behind a call comes the rest of the call, which is the model's own.
        specials = self.tokenizer.special_spans(after) if "tool_calls" in stub[-1] else []
        return before, after[specials[0][0] :] if specials else after

    @cached_property
    def _mark(self) -> str:
        """The content of a stub's last message, which is nowhere in the chat."""
        mark, spelled = _ANSWER, repr((self.chat.messages, self.chat.tools, self.chat.template_arguments))
        while mark in spelled:
            mark += " again"
        return mark


def join(ledger: Rendered, following: Rendered, opening: int, closing: Rendered, *, answered: bool) -> Joint | None:
    """Return where they meet, if the ledger ends with what the first `opening` bytes of `following` begin with.

    A ledger that ends with `closing`, which is what ends a chat, is cut where that and the follow-up part. Ordinary
    text that was generated is the answer's own, also where an opening begins alike.
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
    """Return the stop tokens that a conversation that goes on has behind no answer and no call (GPT-OSS: `<|return|>`).

    A ledger is better off without them: each next turn would leave one behind, and with it a whole turn. None where the
    template does not show what follows an answer.
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
    """Return the ledger without the token that generation stopped at, if it ends with one."""
    last = ledger.specials[-1] if ledger.specials else Span(0, 0)
    spelled = ledger.text[last.start : last.end].decode()
    if not spelled or last.end != len(ledger.text) or tokenizer.special_id(spelled) not in tokenizer.eos_ids:
        return ledger
    return Rendered(ledger.text[: last.start], ledger.specials[:-1])


def _last_edge(rendered: Rendered, at: int) -> int:
    """Return the last place up to `at` where tokens surely meet: next to a special token, at the end, or 0."""
    edges = [0, len(rendered.text), *(edge for span in rendered.specials for edge in span)]
    return max(edge for edge in edges if edge <= at)


def _stubs(first: _Message, mark: str, answered: bool) -> Iterator[tuple[_Messages, _Messages]]:
    """Yield conversations before `first`, in the order to try them: a short and a long one that end with `mark`."""
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
    """Return a call that `result` may answer."""
    function = {"name": result.get("name") or name, "arguments": {"stub": mark}}
    call = {"id": result.get("tool_call_id") or CALL_ID, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
