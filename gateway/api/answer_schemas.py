"""JSON Schemas of answers that no pydantic model describes, and of errors. Each is made of answers: one with nothing in
it, and, where fields may be null, one in which they are not. They say what is always there.
"""

import math
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration

from agentmem.v1 import inference_pb2, model_pb2, types_pb2
from gateway.api import errors
from gateway.api.chat import ChatAnswer
from gateway.api.completions import CompletionAnswer
from gateway.api.messages_output import MessageAnswer
from gateway.api.models import openai_list, openai_model
from gateway.api.reports import memory_report
from gateway.api.validation import Json

_NAMES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}


def like(*answers: Any) -> Json:
    """Return the schema of what has the fields of `answers`, each of the types that it has in them, and may have more.

    Required is what all have. Of what is null in all nothing is said.
    """
    known = [answer for answer in answers if answer is not None]
    if not known:
        return {}
    names = list(dict.fromkeys(_NAMES[type(answer)] for answer in known))
    if len(known) < len(answers):
        names.append("null")
    schema: Json = {"type": names if len(names) > 1 else names[0]}
    if all(isinstance(answer, dict) for answer in known) and (fields := dict.fromkeys(n for d in known for n in d)):
        schema["properties"] = {name: like(*(answer[name] for answer in known if name in answer)) for name in fields}
        schema["required"] = [name for name in fields if all(name in answer for answer in known)]
    if all(isinstance(answer, list) for answer in known) and (items := [item for answer in known for item in answer]):
        schema["items"] = like(*items)
    return schema


_MODELS: Final = [
    model_pb2.Model(),
    model_pb2.Model(
        source="…", adapter="…", tool_parser="…", error="…", ttl=Duration(), memory=model_pb2.ModelMemory()
    ),
    model_pb2.Model(
        kv_bits="…",
        kv_bits_measured=[
            model_pb2.KVBitsMeasurement(kl_divergence=kl, kl_divergence_p99=kl) for kl in (0.5, math.inf)
        ],
        recommended_kv_bits="…",
        kv_bits_reason="…",
        kv_scheme="…",
        calibration=model_pb2.Calibration(digest="…"),
    ),
]
_TRIMS: Final = [types_pb2.ContextTrim(), types_pb2.ContextTrim(snapshot="…", summary="…", summary_failure="…")]
_CACHE: Final = types_pb2.CacheReport(miss_reason=types_pb2.MISS_REASON_ABSENT, snapshot_version=1)
_VERSIONS: Final = [types_pb2.AgentVersion(), types_pb2.AgentVersion(revision=bytes(16))]
_TURNS: Final = [
    (inference_pb2.Started(cache=_CACHE, context_trim=trim), inference_pb2.Finished(version=version))
    for trim, version in zip(_TRIMS, _VERSIONS, strict=True)
]
_REPORTS: Final = [memory_report(*turn, "…") for turn in _TURNS]


def _generation(*answers: Json) -> Json:
    return like(*answers, *({**answers[0], "agentmem": report} for report in _REPORTS))


_CHAT, _CALLS = ChatAnswer("", 0, "").body(), ChatAnswer("", 0, "").body()
_CALLS["choices"][0]["message"]["content"] = None
CHAT_COMPLETION: Final = _generation(_CHAT, _CALLS)
COMPLETION: Final = _generation(CompletionAnswer("", 0, "").body())
MESSAGE: Final = _generation(MessageAnswer("", "").body())
MODEL: Final = like(*map(openai_model, _MODELS))
MODELS: Final = like(openai_list(_MODELS))
ANY: Final[Json] = {"type": "object"}
TOKENS: Final = like({"input_tokens": 0})
STATUS: Final = like({"status": ""})
UNREADY: Final = like({"status": "", "reason": ""})
CLUSTER: Final = like({"cluster_id": "", "node": "", "nodes": []})
OVERVIEW: Final = like({"time": "", "processes": [], "agents_by_tier": {}, "turns_running": []})
EVENT: Final = like({"data": ""})
"""A server-sent event; its data is JSON, or a word of the dialect."""
NAMED_EVENT: Final = like({"event": "", "data": ""})
"""An event of REST's Generate: started, delta, finished; `error` is the last one where there is no `finished`."""


def event_of(message: Json) -> Json:
    """Return the schema of a server-sent event whose data is a message, as JSON."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": message}
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}


_ERROR: Final = errors.OPENAI.http_body(400, "")
OPENAI_ERROR: Final = like(_ERROR, {"error": {**_ERROR["error"], "param": "…", "code": "…"}})
ANTHROPIC_ERROR: Final = like(errors.ANTHROPIC.http_body(400, ""))
