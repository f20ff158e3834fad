"""How a chat template takes the arguments of calls: found by trying, since only the template knows.

Clients send them as JSON text. Most templates want the object that the text spells; DeepSeek's put the text between
texts of their own, and fail with an object.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

Message = dict[str, Any]

CALL_ID = "stub00000"
"""Nine letters and digits, which is what Mistral's templates ask of it."""
_NAME, _WORD = "stub_tool", "a word of the stub"


def wants_text(render: Callable[[list[Message]], str | None]) -> bool:
    """Return whether a template renders calls whose arguments are text, and not those whose arguments are an object.

    `render` returns None where the template refuses the messages.
    """
    function = {"name": _NAME, "arguments": {"stub": _WORD}}
    call = {"id": CALL_ID, "type": "function", "function": function}
    calling: Message = {"role": "assistant", "content": "", "tool_calls": [call]}

    def renders(message: Message) -> bool:
        text = render([{"role": "user", "content": "the question of a stub"}, message])
        return text is not None and _NAME in text and _WORD in text

    return not renders(calling) and renders(with_text(calling))


def with_text(message: Mapping[str, Any]) -> Message:
    """Return a message with the arguments of its calls as JSON text."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_with_text(call) for call in calls]} if calls else dict(message)


def _with_text(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
