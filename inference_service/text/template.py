"""A model's chat template: what it makes of chats, the moment it sees as the present, and what stub chats show of it.

Only the template knows what stands around and between messages, so that is found by rendering stubs: what two
renderings have in common, the prompts that it makes of such chats have in common too. Where it refuses a stub, nothing
is known, and nothing raised.

Templates of Llama 3.2, GPT-OSS, Granite 3.3, Apertus and others put the date in front of a conversation. If it were the
date of each rendering, everything behind it would be computed again the next day. So an agent's turns all see one
moment, which is kept with its ledger as text: ISO 8601 with the offset from UTC, because a date that moves with the
machine's time zone would change, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime, tzinfo
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

import jinja2
from transformers.utils import chat_template_utils

from agentmem.errors import AgentmemError, FailedPrecondition, InvalidArgument
from inference_service.domain import MessagesInput
from inference_service.text.message_forms import SYSTEM_ROLES, forms, has_forms, said_by_system

_FAULTS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_QUESTIONS = ("one question of a stub", "another question of a stub")
_ANSWER = "the answer of the stub"

_moment: ContextVar[datetime | None] = ContextVar("_moment", default=None)

ChatTemplate = Callable[..., str]
"""Renders messages; `apply_chat_template` of a Hugging Face tokenizer."""


class UserTurn(NamedTuple):
    """What a template puts between an answer and the next question: `end` closes the answer, `header` follows it."""

    end: bytes
    header: bytes


class Template:
    """A chat template, or the lack of one. Thread-safe."""

    def __init__(self, apply: ChatTemplate | None) -> None:
        self.apply = apply

    def render(self, chat: MessagesInput, *, generation_prompt: bool = False) -> str:
        """Return a chat as text; the generation prompt is what makes the model answer.

        What the template refuses, or leaves out of what the system says, is rendered in another form that it takes.
        Raises InvalidArgument where it takes none, and FailedPrecondition where there is no template.
        """
        if self.apply is None:
            raise FailedPrecondition("this model has no chat template; send prompt or append.text instead of messages")
        arguments = dict(chat.template_arguments)
        if chat.tools:
            arguments["tools"] = [dict(tool) for tool in chat.tools]
        messages = [dict(message) for message in chat.messages]
        refusal: Exception | None = None
        incomplete: str | None = None
        said = said_by_system(messages)
        for form in forms(messages) if has_forms(messages) else (messages,):
            try:
                text = self.apply(form, **arguments, add_generation_prompt=generation_prompt, tokenize=False)
            except _FAULTS as error:
                refusal = refusal or error
                continue
            if _has_all(text, said):
                return text
            incomplete = incomplete or text
        if incomplete is not None:
            return incomplete
        raise InvalidArgument("messages", f"the model's chat template refuses them: {refusal}") from refusal

    def system_prefix(self, chat: MessagesInput, *, answered: bool = False) -> str:
        """Return what all chats with the system messages and tools of `chat` begin with; "" if it is not known.

        That is these messages and tools, and what the template puts between them and the first user's words: of chats
        that are a question, or of those that go on once it is `answered`.
        """
        system = system_messages(chat)
        stubs = ({"role": "user", "content": question} for question in _QUESTIONS)
        following = (
            ({"role": "assistant", "content": _ANSWER}, {"role": "user", "content": _ANSWER}) if answered else ()
        )
        try:
            one, other = (self.render(replace(chat, messages=(*system, stub, *following))) for stub in stubs)
        except AgentmemError:
            return ""
        return common_prefix(one, other) if one != other else ""

    def system_prefix_length(self, chat: MessagesInput, text: str) -> int:
        """Return how many characters of `text`, a rendering of `chat`, are its system prefix; 0 if it is not known.

        Only a chat that has system messages or tools is worth it. White space at the end is left out: the tokens of a
        run of it depend on what follows.
        """
        if not system_messages(chat) and not chat.tools:
            return 0
        prefix = self.system_prefix(chat).rstrip()
        # A template may put the system message elsewhere once the chat is longer, or leave out what the user says.
        return len(prefix) if text.startswith(prefix) else 0

    def generation_prompt_start(self, chat: MessagesInput, text: str) -> int:
        """Return how many characters of `text`, a rendering of `chat`, stand before its generation prompt.

        0 if there is none or it isn't known. It may differ from what the template makes of the answer once that is
        history (`<think>`).
        """
        try:
            without = self.render(chat)
        except AgentmemError:
            return 0
        return len(without) if len(without) < len(text) and text.startswith(without) else 0

    @cached_property
    def user_turn(self) -> UserTurn | None:
        """How the template goes on from an answer to the next user's message; None where stubs do not show it."""
        said = ({"role": "user", "content": _QUESTIONS[0]}, {"role": "assistant", "content": _ANSWER})
        try:
            answered = self.render(MessagesInput(said))
            asked = self.render(MessagesInput((*said, {"role": "user", "content": _QUESTIONS[1]})))
        except AgentmemError:
            return None
        _, found, following = asked.partition(_ANSWER)
        between, again, _ = following.partition(_QUESTIONS[1])
        if not found or not again:
            return None
        end = answered.partition(_ANSWER)[2]
        end = end if between.startswith(end) else ""
        return UserTurn(end.encode(), between[len(end) :].encode())

    def opening(self, chat: MessagesInput) -> str:
        """Return the system prefix without the header of the user's message; "" if it is not known.

        The header stays where the template puts the system prompt between it and the user's words.
        """
        header = self.user_turn.header.decode() if self.user_turn is not None else ""
        return self.system_prefix(chat).removesuffix(header)


def _has_all(text: str, said: Sequence[str]) -> bool:
    """Return whether all of these are in a text, one after the other."""
    at = 0
    for each in said:
        if (found := text.find(each, at)) < 0:
            return False
        at = found + len(each)
    return True


def common_prefix(one: str, other: str) -> str:
    """Return what both texts begin with."""
    shorter = min(len(one), len(other))
    return one[: next((at for at in range(shorter) if one[at] != other[at]), shorter)]


def system_messages(chat: MessagesInput) -> tuple[Mapping[str, Any], ...]:
    """Return the system messages that a chat begins with."""
    return tuple(takewhile(lambda message: message.get("role") in SYSTEM_ROLES, chat.messages))


def present_moment() -> str:
    """Return the present, to the second, in ISO 8601."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def parse_moment(field: str, moment: str) -> str:
    """Return a moment in the form that is kept. Raises InvalidArgument, which names `field`."""
    try:
        return datetime.fromisoformat(moment).replace(microsecond=0).isoformat()
    except ValueError as error:
        raise InvalidArgument(field, "must be an ISO 8601 date and time, as 2026-03-01T09:30:00+01:00") from error


@contextmanager
def rendering_at(moment: str) -> Iterator[None]:
    """Render in this context as if it were `moment`; empty: at the present. transformers has no argument for it."""
    setattr(chat_template_utils, "datetime", _Clock)  # noqa: B010 - it is not a name that transformers exports
    token = _moment.set(datetime.fromisoformat(moment) if moment else None)
    try:
        yield
    finally:
        _moment.reset(token)


class _Clock(datetime):
    """What transformers reads the time of `strftime_now` from."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        """Return the moment that was set for this rendering, or else the present."""
        return _moment.get() or datetime.now(tz)
