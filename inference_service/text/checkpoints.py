"""Where other prompts will leave a rendered chat: the positions in it that are worth resuming at.

Found by rendering, because only the template knows: what two renderings have in common, the prompts that it makes of
such chats have in common too. A template that refuses what is tried here gives no position, never an error.
"""

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any

from agentmem.errors import AgentmemError
from inference_service.domain import MessagesInput

_SYSTEM_ROLES = ("system", "developer")
_STUB_QUESTIONS = ("one question of a stub", "another question of a stub")

Render = Callable[[MessagesInput, bool], str]
"""A chat as text, with or without the cue that makes the model answer. Raises AgentmemError where it is refused."""


def system_messages(chat: MessagesInput) -> tuple[Mapping[str, Any], ...]:
    """Those that the chat begins with."""
    return tuple(takewhile(lambda message: message.get("role") in _SYSTEM_ROLES, chat.messages))


def beginning(render: Render, chat: MessagesInput) -> str:
    """What all chats with the system messages and tools of `chat` begin with; empty if the template refuses to say.

    That is these messages and tools, and what the template puts between them and the first user's words.
    """
    stubs = [
        MessagesInput(
            (*system_messages(chat), {"role": "user", "content": question}), chat.tools, chat.template_arguments
        )
        for question in _STUB_QUESTIONS
    ]
    try:
        one, other = (render(stub, False) for stub in stubs)
    except AgentmemError:
        return ""
    return one[: next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)]


def shared_beginning(render: Render, chat: MessagesInput, text: str) -> int:
    """Characters that `text`, a rendering of `chat`, begins with whatever the first user says; 0 if nothing is known.

    Only a chat that has system messages or tools is worth it. White space at the end is left out: the tokens of a run
    of it depend on what follows.
    """
    if not system_messages(chat) and not chat.tools:
        return 0
    common = beginning(render, chat).rstrip()
    # A template may put the system message elsewhere once the chat is longer, or say nothing of what the user says.
    return len(common) if text.startswith(common) else 0


def before_cue(render: Render, chat: MessagesInput, text: str) -> int:
    """Characters of `text`, a rendering of `chat` with its cue, up to the cue; 0 if there is none or it isn't known.

    The cue may differ from what the template makes of the answer once that is history (`<think>`).
    """
    try:
        without = render(chat, False)
    except AgentmemError:
        return 0
    return len(without) if len(without) < len(text) and text.startswith(without) else 0
