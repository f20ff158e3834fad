"""The gateway's address, and expectations that the programs beside this one share."""

import os
import uuid
from collections.abc import Awaitable, Callable
from typing import Literal

from pydantic import BaseModel

URL = os.environ["AGENTMEM_URL"]
"""The URL for Anthropic's SDK."""
V1 = f"{URL}/v1"
"""The same, for OpenAI's."""
KEY = os.environ["AGENTMEM_KEY"]
TOO_LONG = "boat " * 9000
"""More than the demo model's context holds."""


class Alarm(BaseModel):
    """An alarm."""

    at: Literal["07:00", "08:00"]


def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """How the weather is."""
    return "rain"


async def raised_by(call: Awaitable[object]) -> Exception:
    """Return the error of awaiting `call`, which must fail."""
    try:
        answer = await call
    except Exception as error:  # noqa: BLE001 - whatever a framework makes of it
        return error
    raise AssertionError(f"it answered {answer!r}")


def raised(call: Callable[[], object]) -> Exception:
    """Return the error of `call`, which must fail."""
    try:
        answer = call()
    except Exception as error:  # noqa: BLE001 - whatever a framework makes of it
        return error
    raise AssertionError(f"it answered {answer!r}")


def other_beginning() -> str:
    """A system message that no other conversation begins with."""
    return f"Conversation {uuid.uuid4()}."
