"""JSON Schemas of answers that no pydantic model describes, and of errors, each made of one. They say what is always
there; what is null in that one may be anything.
"""

from typing import Any, Final

from agentmem.v1 import model_pb2
from gateway.api import errors
from gateway.api.chat import ChatAnswer
from gateway.api.completions import CompletionAnswer
from gateway.api.messages import MessageAnswer
from gateway.api.models import openai_list, openai_model
from gateway.api.validation import Json


def like(answer: Any) -> Json:
    """Return the schema of what has the fields of `answer`, of the same types, and may have more."""
    match answer:
        case None:
            return {}
        case dict():
            fields = {name: like(value) for name, value in answer.items()}
            return {"type": "object", **({"properties": fields, "required": list(fields)} if fields else {})}
        case list():
            return {"type": "array", **({"items": like(answer[0])} if answer else {})}
    return {"type": {bool: "boolean", int: "integer", float: "number", str: "string"}[type(answer)]}


_NO_MODEL: Final = model_pb2.Model()
_CHAT: Final = ChatAnswer("", 0, "").body()
_CHAT["choices"][0]["message"]["content"] = None  # where there are only calls

ANY: Final[Json] = {"type": "object"}
CHAT_COMPLETION: Final = like(_CHAT)
COMPLETION: Final = like(CompletionAnswer("", 0, "").body())
MESSAGE: Final = like(MessageAnswer("", "").body())
MODEL: Final = like(openai_model(_NO_MODEL))
MODELS: Final = like(openai_list([_NO_MODEL]))
TOKENS: Final = like({"input_tokens": 0})
STATUS: Final = like({"status": ""})
UNREADY: Final = like({"status": "", "reason": ""})
EVENT: Final = like({"data": ""})
"""A server-sent event; its data is JSON, or a word of the dialect."""
NAMED_EVENT: Final = like({"event": "", "data": ""})
"""An event of REST's Generate: started, delta, finished; `error` is the last one where there is no `finished`."""

OPENAI_ERROR: Final = like(errors.OPENAI.http_body(400, ""))
ANTHROPIC_ERROR: Final = like(errors.ANTHROPIC.http_body(400, ""))
