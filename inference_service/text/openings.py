"""What stands before the first user's words, and how a template goes on from an answer to the next user's message.

Found by rendering stubs, because only the template knows. One that refuses them says nothing, and raises nothing.
"""

from typing import NamedTuple

from agentmem.errors import AgentmemError
from inference_service.domain import MessagesInput
from inference_service.text.checkpoints import Render, beginning

_QUESTIONS = ("one question of a stub", "another question of a stub")
_ANSWER = "the answer of the stub"


class UserTurn(NamedTuple):
    """What a template puts between an answer and the next question: `end` closes the answer, `header` follows it."""

    end: str
    header: str


def user_turn(render: Render) -> UserTurn | None:
    """The template's own, where it can be told."""
    said = ({"role": "user", "content": _QUESTIONS[0]}, {"role": "assistant", "content": _ANSWER})
    try:
        answered = render(MessagesInput(said), False)
        asked = render(MessagesInput((*said, {"role": "user", "content": _QUESTIONS[1]})), False)
    except AgentmemError:
        return None
    _, found, following = asked.partition(_ANSWER)
    between, again, _ = following.partition(_QUESTIONS[1])
    if not found or not again:
        return None
    end = answered.partition(_ANSWER)[2]
    end = end if between.startswith(end) else ""
    return UserTurn(end, between[len(end) :])


def opening(render: Render, chat: MessagesInput, turn: UserTurn | None) -> str:
    """What `chat` begins with whatever its first user says; "" if it is not known.

    Without the header of the user's message, unless the template puts the system prompt between the two.
    """
    common = beginning(render, chat)
    return common.removesuffix(turn.header) if turn is not None else common
