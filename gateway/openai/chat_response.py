"""The events of turns in OpenAI's shape: one completion, or chunks.

Beyond OpenAI's fields a completion, and the chunk with a finish_reason, hold `agentmem`: the agent, how the prompt
matched its memory, tokens reused per tier, the agent's version, whether the turn is durable, and timings in seconds. Of
several choices it tells of the first, which is the agent's. A call of a tool comes whole, when the model has made it.
What the model thought is `reasoning_content`, of a message as of a delta, where the model's format tells it apart.
"""

from collections.abc import Iterator, Sequence

from agentmem.errors import AgentmemError
from agentmem.v1 import inference_pb2, types_pb2
from gateway.exchange import Json, SseEvent
from gateway.finish_reasons import finish_reason
from gateway.memory_report import memory_report
from gateway.openai.errors import error_body
from gateway.openai.told import DONE, logprobs_of, usage


class _Choice:
    """One choice as far as it has come."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.texts: list[str] = []
        self.logprobs: list[Json] = []
        self.calls: list[inference_pb2.ToolCall] = []
        self.started = inference_pb2.Started()
        self.finished = inference_pb2.Finished()

    def add(self, event: inference_pb2.GenerateResponse) -> None:
        match event.WhichOneof("event"):
            case "started":
                self.started = event.started
            case "delta":
                self.reasoning.append(event.delta.reasoning)
                self.texts.append(event.delta.text)
                self.logprobs += logprobs_of(event.delta.logprobs)
                self.calls += event.delta.tool_calls
            case "finished":
                self.finished = event.finished


class ChatAnswer:
    """An Answer. `include_usage` is as in stream_options; `logprobs` says whether they were asked for."""

    def __init__(
        self, answer_id: str, created: int, model: str, choices: int, *, logprobs: bool, include_usage: bool = False
    ) -> None:
        self._head = {"id": answer_id, "created": created, "model": model}
        self._wants_logprobs = logprobs
        self._include_usage = include_usage
        self._choices = [_Choice() for _ in range(choices)]
        self.agent_id = ""

    def add(self, choice: int, event: inference_pb2.GenerateResponse) -> None:
        """As in Answer."""
        self._choices[choice].add(event)

    def body(self) -> Json:
        """The chat.completion."""
        choices = [
            {
                "index": index,
                "message": _message(choice),
                "logprobs": {"content": choice.logprobs, "refusal": None} if self._wants_logprobs else None,
                "finish_reason": finish_reason(choice.finished.reason),
            }
            for index, choice in enumerate(self._choices)
        ]
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(self._usages()[:1], self._usages()),
            "agentmem": self._report(),
        }

    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterator[SseEvent]:
        """The chunks that tell of `event`; none where it has nothing new for a reader."""
        called = len(self._choices[choice].calls)
        self.add(choice, event)
        match event.WhichOneof("event"):
            case "started":
                yield self._chunk(choice, {"role": "assistant", "content": "", "refusal": None})
            case "delta":
                logprobs = logprobs_of(event.delta.logprobs) if self._wants_logprobs else []
                if event.delta.reasoning:
                    yield self._chunk(choice, {"reasoning_content": event.delta.reasoning})
                if event.delta.text or logprobs:
                    yield self._chunk(choice, {"content": event.delta.text}, logprobs=logprobs)
                for index, call in enumerate(event.delta.tool_calls, called):
                    for part in _parts(index, call):
                        yield self._chunk(choice, {"tool_calls": [part]})
            case "finished":
                reason = finish_reason(event.finished.reason)
                report = self._report() if choice == 0 else None
                yield self._chunk(choice, {}, finish_reason=reason, report=report)

    def closing(self) -> Iterator[SseEvent]:
        """The usage, if it was asked for, and [DONE]."""
        if self._include_usage:
            head = {**self._head, "object": "chat.completion.chunk"}
            yield SseEvent({**head, "choices": [], "usage": usage(self._usages()[:1], self._usages())})
        yield DONE

    def failed(self, error: AgentmemError) -> Iterator[SseEvent]:
        """The error, and no [DONE]."""
        yield SseEvent(error_body(error))

    def _chunk(
        self,
        index: int,
        delta: Json,
        *,
        logprobs: Sequence[Json] = (),
        finish_reason: str | None = None,
        report: Json | None = None,
    ) -> SseEvent:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": {"content": logprobs, "refusal": None} if logprobs else None,
            "finish_reason": finish_reason,
        }
        chunk: Json = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        if report is not None:
            chunk["agentmem"] = report
        return SseEvent({**chunk, "usage": None} if self._include_usage else chunk)

    def _usages(self) -> list[types_pb2.Usage]:
        return [choice.finished.usage for choice in self._choices]

    def _report(self) -> Json:
        first = self._choices[0]
        return memory_report(first.started, first.finished, self.agent_id)


def _message(choice: _Choice) -> Json:
    text, reasoning, calls = "".join(choice.texts), "".join(choice.reasoning), choice.calls
    message: Json = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    return {**message, "tool_calls": [_call(call) for call in calls]} if calls else message


def _call(call: inference_pb2.ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}


def _parts(index: int, call: inference_pb2.ToolCall) -> Iterator[Json]:
    """A call as deltas, as OpenAI orders them: what it is, and then its arguments."""
    yield {"index": index, **_call(call), "function": {"name": call.name, "arguments": ""}}
    yield {"index": index, "function": {"arguments": call.arguments_json}}
