"""The events of a turn as one message, or the stream of it.

An answer that says nothing has no block. The signature of a thinking block is a hash of its text.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from agentmem.errors import AgentmemError
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.errors import ANTHROPIC
from gateway.api.exchange import Answer, SseEvent, calls_in_order
from gateway.api.validation import Json

_STOP_REASONS: Final = {
    types_pb2.FINISH_REASON_STOP_STRING: "stop_sequence",
    types_pb2.FINISH_REASON_LENGTH: "max_tokens",
    types_pb2.FINISH_REASON_CONTEXT: "model_context_window_exceeded",
    types_pb2.FINISH_REASON_TOOL_CALLS: "tool_use",
}


class MessageAnswer(Answer):
    """Without `thinking` nothing of what the model thought. `managed`: edits of the context were asked for, and it says
    that there were none.
    """

    def __init__(self, answer_id: str, model: str, *, thinking: bool = True, managed: bool = False) -> None:
        super().__init__({"id": answer_id, "type": "message", "role": "assistant", "model": model})
        self._managed: Json = {"context_management": {"applied_edits": []}} if managed else {}
        self._thinking = thinking
        self._blocks: list[Json] = []
        self._kind = ""
        """The kind of the block that the model is saying; empty for none."""
        self._calling: Json | None = None
        """The call that the model is making."""
        self._texts: list[str] = []

    def body(self) -> Json:
        answer = {**self.head, "content": self._blocks, **self._stopped()}
        return {**answer, "usage": self._usage(), **self._managed, "agentmem": self.report()}

    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterator[SseEvent]:
        self.heard[choice].note(event)
        match event.WhichOneof("event"):
            case "started":
                cache = event.started.cache
                tokens = usage(cache.prompt_tokens, cache.cached, 0, kept=bool(self.agent_id))
                begun: Json = {**self.head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": tokens}
                yield _event("message_start", message=begun)
                yield _event("ping")
            case "delta":
                if event.delta.reasoning and self._thinking:
                    yield from self._say("thinking", event.delta.reasoning)
                if event.delta.text:
                    yield from self._say("text", event.delta.text)
                for call in calls_in_order(event.delta):
                    yield from self._call(call) if isinstance(call, inference_pb2.ToolCall) else self._take_part(call)
            case "finished":
                yield from self._close()
                said = {"delta": self._stopped(), "usage": self._usage(), **self._managed, "agentmem": self.report()}
                yield _event("message_delta", **said)

    def alive(self) -> Iterator[SseEvent]:
        yield _event("ping")

    def closing(self) -> Iterator[SseEvent]:
        yield _event("message_stop")

    def failed(self, error: AgentmemError) -> Iterator[SseEvent]:
        yield SseEvent(ANTHROPIC.body(error), "error")

    def _say(self, kind: str, text: str) -> Iterator[SseEvent]:
        if self._kind != kind or self._calling is not None:
            yield from self._close()
            self._kind, self._texts = kind, []
            yield self._of_block("start", content_block=_block(kind, ""))
        self._texts.append(text)
        yield self._of_block("delta", delta={"type": f"{kind}_delta", kind: text})

    def _take_part(self, part: inference_pb2.ToolCallPart) -> Iterator[SseEvent]:
        if part.name:
            yield from self._close()
            self._calling = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
            yield self._of_block("start", content_block=self._calling)
        if self._calling is None or self._calling["id"] != part.id:
            return  # it turned out to be no call
        yield self._of_block("delta", delta={"type": "input_json_delta", "partial_json": part.arguments_json})

    def _call(self, call: inference_pb2.ToolCall) -> Iterator[SseEvent]:
        if self._calling is None or self._calling["id"] != call.id:
            whole = inference_pb2.ToolCallPart(id=call.id, name=call.name, arguments_json=call.arguments_json)
            yield from self._take_part(whole)
        assert self._calling is not None
        self._calling["input"] = json.loads(call.arguments_json)
        yield from self._close()

    def _close(self) -> Iterator[SseEvent]:
        if self._calling is not None:  # whole, or no call
            yield self._of_block("stop")
            self._blocks.append(self._calling)
            self._calling = None
        if not self._kind:
            return
        block = _block(self._kind, "".join(self._texts))
        if "signature" in block:
            yield self._of_block("delta", delta={"type": "signature_delta", "signature": block["signature"]})
        yield self._of_block("stop")
        self._blocks.append(block)
        self._kind = ""

    def _of_block(self, name: str, **fields: Json) -> SseEvent:
        return _event(f"content_block_{name}", index=len(self._blocks), **fields)

    def _stopped(self) -> Json:
        finished = self.heard[0].finished
        matched = finished.stop_string if finished.reason == types_pb2.FINISH_REASON_STOP_STRING else None
        return {"stop_reason": _STOP_REASONS.get(finished.reason, "end_turn"), "stop_sequence": matched}

    def _usage(self) -> Json:
        counts = self.heard[0].finished.usage
        return usage(counts.prompt_tokens, counts.cached, counts.completion_tokens, kept=bool(self.agent_id))


def _block(kind: str, text: str) -> Json:
    """A thought's signature is what clients expect to send back with it."""
    if kind == "text":
        return {"type": kind, kind: text}
    signature = hashlib.blake2b(text.encode(), digest_size=16).hexdigest() if text else ""
    return {"type": kind, kind: text, "signature": signature}


def usage(prompt: int, cached: Iterable[types_pb2.TierTokens], said: int, *, kept: bool) -> Json:
    """Return token counts: of the prompt those from memory, those new to it, where the turn is `kept`, and others."""
    read = sum(part.tokens for part in cached)
    new = prompt - read
    return {
        "input_tokens": 0 if kept else new,
        "cache_creation_input_tokens": new if kept else 0,
        "cache_read_input_tokens": read,
        "output_tokens": said,
    }


def _event(name: str, **fields: Any) -> SseEvent:
    return SseEvent({"type": name, **fields}, name)
