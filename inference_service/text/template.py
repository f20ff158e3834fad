"""A model's chat template and its present time. Comparing renderings of stubs shows what stands around messages.

Some templates (Llama 3.2, GPT-OSS, Granite 3.3, Apertus) begin with the date, and a new one would make later KV
useless: an agent's turns see one time, kept in ISO 8601 with its offset.
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
"""`apply_chat_template` of a Hugging Face tokenizer."""


class UserTurn(NamedTuple):
    """Text between an answer and the next question: `end` closes the answer."""

    end: bytes
    header: bytes


class Template:
    """Thread-safe."""

    def __init__(self, apply: ChatTemplate | None) -> None:
        self.apply = apply

    def render(self, chat: MessagesInput, *, generation_prompt: bool = False) -> str:
        """Render a chat, in another form if the template refuses it or leaves out system messages. Raises
        InvalidArgument, and FailedPrecondition without a template.
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
        """Return the common beginning of chats with these system messages and tools; "" if unknown."""
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
        """Return the system prefix's length in `text`; 0 if unknown. White space at the end depends on what follows."""
        if not system_messages(chat) and not chat.tools:
            return 0
        prefix = self.system_prefix(chat).rstrip()
        # Templates may move the system message, or leave out what the user says.
        return len(prefix) if text.startswith(prefix) else 0

    def generation_prompt_start(self, chat: MessagesInput, text: str) -> int:
        """Return the generation prompt's start in `text`; 0 if unknown. History may begin answers otherwise
        (`<think>`).
        """
        try:
            without = self.render(chat)
        except AgentmemError:
            return 0
        return len(without) if len(without) < len(text) and text.startswith(without) else 0

    @cached_property
    def user_turn(self) -> UserTurn | None:
        """None if stubs do not show it."""
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
        """Return the system prefix without the user's header; "" if unknown."""
        header = self.user_turn.header.decode() if self.user_turn is not None else ""
        return self.system_prefix(chat).removesuffix(header)


def _has_all(text: str, said: Sequence[str]) -> bool:
    at = 0
    for each in said:
        if (found := text.find(each, at)) < 0:
            return False
        at = found + len(each)
    return True


def common_prefix(one: str, other: str) -> str:
    shorter = min(len(one), len(other))
    return one[: next((at for at in range(shorter) if one[at] != other[at]), shorter)]


def system_messages(chat: MessagesInput) -> tuple[Mapping[str, Any], ...]:
    return tuple(takewhile(lambda message: message.get("role") in SYSTEM_ROLES, chat.messages))


def present_moment() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def parse_moment(field: str, moment: str) -> str:
    """Raises InvalidArgument."""
    try:
        return datetime.fromisoformat(moment).replace(microsecond=0).isoformat()
    except ValueError as error:
        raise InvalidArgument(field, "must be an ISO 8601 date and time, as 2026-03-01T09:30:00+01:00") from error


@contextmanager
def rendering_at(moment: str) -> Iterator[None]:
    """Render as at `moment`; transformers has no argument for it."""
    setattr(chat_template_utils, "datetime", _Clock)  # noqa: B010 - transformers does not export the name
    token = _moment.set(datetime.fromisoformat(moment) if moment else None)
    try:
        yield
    finally:
        _moment.reset(token)


class _Clock(datetime):
    """For `strftime_now`."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        return _moment.get() or datetime.now(tz)
