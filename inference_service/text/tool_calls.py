import json
import secrets
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmem import jsontext
from agentmem.errors import InvalidArgument
from agentmem.v1.inference_pb2 import ToolCall
from inference_service.families.chats import SHORT_IDS, CallForm

_PARSER_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    SyntaxError,
    RecursionError,
    MemoryError,
)
"""Most parsers take other text apart unchecked."""

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class CallSyntax:
    """`parse` takes text between `start` and `end`, and tools or None; it returns calls with name, arguments and
    perhaps id, or raises. Any thread.

    Without an `end`, calls go to the turn's end; without a `form`, they have no grammar.
    """

    name: str
    start: bytes
    end: bytes
    parse: Callable[[str, list[dict[str, Any]] | None], Any]
    form: CallForm | None = None

    def __post_init__(self) -> None:
        if not self.start:
            raise ValueError("calls need a marker that they start with")

    def calls(self, text: bytes, tools: Tools = (), taken_ids: Collection[str] = ()) -> list[ToolCall]:
        """Return calls if all of `text` parses; ids stay unless in `taken_ids`. Parsers may take quadratic time
        (mlx-lm's for Gemma 4: seconds for 16 KB).
        """
        try:
            parsed = self.parse(text.decode(errors="replace"), [dict(tool) for tool in tools] or None)
            found: list[ToolCall] = []
            for call in parsed if isinstance(parsed, list) else [parsed]:
                found.append(self._checked(call, {*taken_ids, *(each.id for each in found)}))
        except (*_PARSER_ERRORS, InvalidArgument):
            return []
        return found

    def _checked(self, call: Mapping[str, Any], taken_ids: Collection[str]) -> ToolCall:
        """Raises one of _PARSER_ERRORS, or InvalidArgument."""
        name, given = call["name"], call.get("id")
        arguments = jsontext.object_or_text(call.get("arguments") or {})
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        jsontext.parse("arguments", text, dict)
        if not isinstance(name, str) or not name or name != name.encode().decode():
            raise ValueError("a call needs a name")
        usable = isinstance(given, str) and given and given not in taken_ids and given.encode()
        return ToolCall(id=str(given) if usable else self.new_id(), name=name, arguments_json=text)

    def new_id(self) -> str:
        if self.name in SHORT_IDS:
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"
