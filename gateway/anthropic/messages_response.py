"""The events of a turn in Anthropic's shape: one message, or the stream of one.

A stream has message_start, ping, then each block from its start over its deltas to its stop, message_delta and
message_stop. An answer that says nothing has no block. A call of a tool is known whole, so its input is one delta. What
the model thought is in thinking blocks, whose signature is a hash of the text.

Beyond Anthropic's fields a message, and the message_delta of a stream, hold `agentmem`: the agent, how the prompt
matched its memory, tokens reused per tier, the agent's version, whether the turn is durable, and timings in seconds.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator

from agentmem.errors import AgentmemError
from agentmem.v1 import inference_pb2, types_pb2
from gateway.anthropic.errors import error_body
from gateway.exchange import Json, SseEvent
from gateway.memory_report import memory_report

_STOP_REASONS = {
    types_pb2.FINISH_REASON_STOP_STRING: "stop_sequence",
    types_pb2.FINISH_REASON_LENGTH: "max_tokens",
    types_pb2.FINISH_REASON_CONTEXT: "model_context_window_exceeded",
    types_pb2.FINISH_REASON_TOOL_CALLS: "tool_use",
}


class MessageAnswer:
    """An Answer. Without `thinking` it does not tell what the model thought."""

    def __init__(self, answer_id: str, model: str, *, thinking: bool = True) -> None:
        self._head = {"id": answer_id, "type": "message", "role": "assistant", "model": model}
        self._thinking = thinking
        self._blocks: list[_TextBlock | _ThinkingBlock | _ToolUseBlock] = []
        self._started = inference_pb2.Started()
        self._finished = inference_pb2.Finished()
        self.agent_id = ""

    def add(self, choice: int, event: inference_pb2.GenerateResponse) -> None:
        """As in Answer."""
        for _ in self.events(choice, event):
            pass

    def body(self) -> Json:
        """The message."""
        return {
            **self._head,
            "content": [block.whole() for block in self._blocks],
            **self._stopped(),
            "usage": self._usage(),
            "agentmem": self._report(),
        }

    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterator[SseEvent]:  # noqa: ARG002 - always 0
        """As in Answer."""
        match event.WhichOneof("event"):
            case "started":
                self._started = event.started
                yield _event("message_start", message=self._begun())
                yield _event("ping")
            case "delta":
                if event.delta.reasoning and self._thinking:
                    yield from self._say(_ThinkingBlock, event.delta.reasoning)
                if event.delta.text:
                    yield from self._say(_TextBlock, event.delta.text)
                for call in event.delta.tool_calls:
                    yield from self._call(call)
            case "finished":
                self._finished = event.finished
                yield from self._stop_said()
                delta = self._stopped()
                yield _event("message_delta", delta=delta, usage=self._usage(), agentmem=self._report())

    def closing(self) -> Iterator[SseEvent]:
        """As in Answer."""
        yield _event("message_stop")

    def failed(self, error: AgentmemError) -> Iterator[SseEvent]:
        """As in Answer."""
        yield SseEvent(error_body(error), "error")

    def _say(self, kind: "type[_TextBlock | _ThinkingBlock]", text: str) -> Iterator[SseEvent]:
        if not (self._blocks and isinstance(self._blocks[-1], kind)):
            yield from self._stop_said()
            self._blocks.append(kind())
            yield self._start()
        block = self._blocks[-1]
        assert isinstance(block, kind)
        block.texts.append(text)
        yield self._delta(block.delta(text))

    def _call(self, call: inference_pb2.ToolCall) -> Iterator[SseEvent]:
        yield from self._stop_said()
        self._blocks.append(_ToolUseBlock(call))
        yield self._start()
        yield self._delta({"type": "input_json_delta", "partial_json": call.arguments_json})
        yield self._stop()

    def _stop_said(self) -> Iterator[SseEvent]:
        """A text or a thought ends where something else begins; a call has ended already."""
        if not self._blocks or isinstance(self._blocks[-1], _ToolUseBlock):
            return
        if isinstance(self._blocks[-1], _ThinkingBlock):
            yield self._delta({"type": "signature_delta", "signature": self._blocks[-1].signature})
        yield self._stop()

    def _start(self) -> SseEvent:
        return _event("content_block_start", index=len(self._blocks) - 1, content_block=self._blocks[-1].start())

    def _delta(self, delta: Json) -> SseEvent:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _stop(self) -> SseEvent:
        return _event("content_block_stop", index=len(self._blocks) - 1)

    def _begun(self) -> Json:
        cache = self._started.cache
        tokens = usage(cache.prompt_tokens, cache.cached, 0, kept=bool(self.agent_id))
        return {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": tokens}

    def _stopped(self) -> Json:
        reason = self._finished.reason
        matched = self._finished.stop_string if reason == types_pb2.FINISH_REASON_STOP_STRING else None
        return {"stop_reason": stop_reason(reason), "stop_sequence": matched}

    def _usage(self) -> Json:
        told = self._finished.usage
        return usage(told.prompt_tokens, told.cached, told.completion_tokens, kept=bool(self.agent_id))

    def _report(self) -> Json:
        return memory_report(self._started, self._finished, self.agent_id)


class _TextBlock:
    """A text as far as it has come."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def start(self) -> Json:
        return {"type": "text", "text": ""}

    def delta(self, text: str) -> Json:
        return {"type": "text_delta", "text": text}

    def whole(self) -> Json:
        return {"type": "text", "text": "".join(self.texts)}


class _ThinkingBlock:
    """What the model thought, as far as it has come."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @property
    def signature(self) -> str:
        """What clients expect to send back with it."""
        return hashlib.blake2b("".join(self.texts).encode(), digest_size=16).hexdigest()

    def start(self) -> Json:
        return {"type": "thinking", "thinking": "", "signature": ""}

    def delta(self, text: str) -> Json:
        return {"type": "thinking_delta", "thinking": text}

    def whole(self) -> Json:
        return {"type": "thinking", "thinking": "".join(self.texts), "signature": self.signature}


class _ToolUseBlock:
    """A call."""

    def __init__(self, call: inference_pb2.ToolCall) -> None:
        self._call = call

    def start(self) -> Json:
        return {"type": "tool_use", "id": self._call.id, "name": self._call.name, "input": {}}

    def whole(self) -> Json:
        return {**self.start(), "input": json.loads(self._call.arguments_json)}


def stop_reason(reason: "types_pb2.FinishReason.ValueType") -> str:
    """Anthropic's word for it."""
    return _STOP_REASONS.get(reason, "end_turn")


def usage(prompt: int, cached: Iterable[types_pb2.TierTokens], said: int, *, kept: bool) -> Json:
    """Token counts. Each of the prompt's tokens is in one of three: read from memory, of any tier; new to it, where the
    turn is `kept`; or neither.
    """
    read = sum(part.tokens for part in cached)
    new = prompt - read
    return {
        "input_tokens": 0 if kept else new,
        "cache_creation_input_tokens": new if kept else 0,
        "cache_read_input_tokens": read,
        "output_tokens": said,
    }


def _event(name: str, **fields: Json | int) -> SseEvent:
    return SseEvent({"type": name, **fields}, name)
