"""Messages in forms that templates take, if they refuse system messages or arguments.

Forms depend only on earlier messages and the next one, so longer chats keep their beginning.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Final

Message = dict[str, Any]

SYSTEM_ROLES: Final = ("system", "developer")
_BETWEEN: Final = "\n\n"
_CUT: Final = "text"
"""For arguments that are no object."""


def forms(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the messages, then other forms, the smallest changes first."""
    seen: list[list[Message]] = []
    for leading, later in _FORMS:
        for arguments in (_same, _with_objects, _with_text):
            form = arguments(later(leading(list(messages))))
            if form not in seen:
                seen.append(form)
                yield form


def said_by_system(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return texts of later system messages."""
    texts = (_text(message).strip() for message in messages[1:] if _is_system(message))
    return list(filter(None, texts))


def has_forms(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(_is_system(message) or message.get("tool_calls") for message in messages)


_Rewrite = Callable[[list[Message]], list[Message]]


def _same(messages: list[Message]) -> list[Message]:
    return messages


def _joined(messages: list[Message]) -> list[Message]:
    leading = list(takewhile(_is_system, messages))
    if len(leading) < 2:
        return messages
    return [{**leading[0], "content": _BETWEEN.join(map(_text, leading))}, *messages[len(leading) :]]


def _in_first_question(messages: list[Message]) -> list[Message]:
    """Move leading system messages into the user's first message."""
    leading = list(takewhile(_is_system, messages))
    if not leading:
        return messages
    rest, text = messages[len(leading) :], _BETWEEN.join(map(_text, leading))
    if rest and rest[0].get("role") == "user":
        return [{**rest[0], "content": _BETWEEN.join((text, _text(rest[0])))}, *rest[1:]]
    return [{"role": "user", "content": text}, *rest]


def _as_questions(messages: list[Message], *, merge: bool = False) -> list[Message]:
    """Make later system messages the user's, or `merge` them with the user's."""
    first = len(list(takewhile(_is_system, messages)))
    made, texts, mergeable = messages[:first], list[str](), False

    def settle() -> None:
        if len(texts) > 1:
            made[-1] = {**made[-1], "content": _BETWEEN.join(texts)}

    for message in messages[first:]:
        system = _is_system(message)
        asks = merge and (system or (mergeable and message.get("role") == "user"))
        if asks and made and made[-1].get("role") == "user":
            texts.append(_text(message))
            continue
        settle()
        made.append({**message, "role": "user"} if system else message)
        texts, mergeable = [_text(message)], system
    settle()
    return made


_in_questions: _Rewrite = partial(_as_questions, merge=True)
_FORMS: Final[tuple[tuple[_Rewrite, _Rewrite], ...]] = (
    (_same, _same),
    (_same, _as_questions),
    (_joined, _as_questions),
    (_joined, _in_questions),
    (_in_first_question, _in_questions),
)
"""For leading system messages, and for later ones."""


def _with_objects(messages: list[Message]) -> list[Message]:
    return _with_arguments(messages, str, lambda arguments: {_CUT: arguments})


def _with_text(messages: list[Message]) -> list[Message]:
    return _with_arguments(messages, Mapping, lambda arguments: json.dumps(arguments, ensure_ascii=False))


def _with_arguments(messages: list[Message], kind: type, convert: Callable[[Any], object]) -> list[Message]:
    def converted(call: Any) -> Any:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), kind):
            return call
        return {**call, "function": {**function, "arguments": convert(function["arguments"])}}

    return [
        {**message, "tool_calls": [*map(converted, calls)]} if (calls := message.get("tool_calls")) else message
        for message in messages
    ]


def _is_system(message: Mapping[str, Any]) -> bool:
    return message.get("role") in SYSTEM_ROLES


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""
