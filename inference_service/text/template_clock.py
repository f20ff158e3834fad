"""The moment that a chat template sees as the present.

Templates of Llama 3.2, GPT-OSS, Granite 3.3, Apertus and others put the date in front of a conversation. If it were the
date of each rendering, everything behind it would be computed again the next day. So an agent's turns all see one
moment, which is kept with its ledger as text: ISO 8601 with the offset from UTC, because a date that moves with the
machine's time zone would change, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, tzinfo
from typing import Any

from transformers.utils import chat_template_utils

from agentmem.errors import InvalidArgument

_seen: ContextVar[datetime | None] = ContextVar("_seen", default=None)


class _Clock(datetime):
    """What transformers reads the time of `strftime_now` from."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        """The moment that was set for this rendering, or else the present."""
        return _seen.get() or datetime.now(tz)


def present() -> str:
    """The present moment, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def parsed(field: str, moment: str) -> str:
    """A moment in the form that is kept. Raises InvalidArgument."""
    try:
        return datetime.fromisoformat(moment).replace(microsecond=0).isoformat()
    except ValueError as error:
        raise InvalidArgument(field, "must be an ISO 8601 date and time, as 2026-03-01T09:30:00+01:00") from error


@contextmanager
def at(moment: str) -> Iterator[None]:
    """Render in this context as if it were `moment`; empty: at the present. transformers has no argument for it."""
    setattr(chat_template_utils, "datetime", _Clock)  # noqa: B010 - it is not a name that transformers exports
    token = _seen.set(datetime.fromisoformat(moment) if moment else None)
    try:
        yield
    finally:
        _seen.reset(token)
