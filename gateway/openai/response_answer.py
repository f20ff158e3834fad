"""The events of a turn in the shape of /v1/responses: one response, or the stream of events that makes it.

Beyond OpenAI's fields a response that has ended holds `agentmem`: the agent, how the prompt matched its memory, tokens
reused per tier, the agent's version, whether the turn is durable, and timings in seconds.
"""

from collections.abc import Iterator

from agentmem.errors import AgentmemError, FailedPrecondition, InvalidArgument, ResourceExhausted
from agentmem.v1 import inference_pb2
from gateway.exchange import Json, SseEvent
from gateway.finish_reasons import cut_short
from gateway.memory_report import cached_tokens, memory_report
from gateway.openai.response_output import Output


class ResponseAnswer:
    """An Answer. `head` is what the response says of its request; `number` makes the ids of its items."""

    def __init__(self, head: Json, number: str, *, logprobs: bool) -> None:
        self._head = head
        self._output = Output(number, logprobs=logprobs)
        self._started = inference_pb2.Started()
        self._finished = inference_pb2.Finished()
        self._events = 0
        self.agent_id = ""

    def add(self, choice: int, event: inference_pb2.GenerateResponse) -> None:
        """As in Answer."""
        for _ in self.events(choice, event):
            pass

    def body(self) -> Json:
        """The response, completed or incomplete."""
        incomplete = cut_short(self._finished.reason)
        return {
            **self._response("incomplete" if incomplete else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
            "output": self._output.items,
            "usage": self._usage(),
            "agentmem": memory_report(self._started, self._finished, self.agent_id),
        }

    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterator[SseEvent]:  # noqa: ARG002 - one
        """The events that tell of `event`."""
        if self._events == 0:
            for name in ("created", "in_progress"):
                yield self._lifecycle(name, self._response("in_progress"))
        match event.WhichOneof("event"):
            case "started":
                self._started = event.started
            case "delta":
                for told in self._output.add(event.delta):
                    yield self._numbered(told)
            case "finished":
                self._finished = event.finished
                for told in self._output.end(cut_short=cut_short(event.finished.reason)):
                    yield self._numbered(told)

    def closing(self) -> Iterator[SseEvent]:
        """response.completed, or response.incomplete."""
        body = self.body()
        yield self._lifecycle(body["status"], body)

    def failed(self, error: AgentmemError) -> Iterator[SseEvent]:
        """response.failed, with what was said until then."""
        told = {"code": _code(error), "message": error.message}
        response = {**self._response("failed"), "error": told, "output": self._output.items}
        yield self._lifecycle("failed", response)

    def _response(self, status: str) -> Json:
        nothing_yet: Json = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        # What nobody keeps cannot be followed by its id, whatever was asked for.
        stored = self._head["store"] and bool(self.agent_id)
        return {**self._head, "store": stored, "status": status, **nothing_yet}

    def _lifecycle(self, name: str, response: Json) -> SseEvent:
        return self._numbered({"type": f"response.{name}", "response": response})

    def _numbered(self, told: Json) -> SseEvent:
        event = SseEvent({**told, "sequence_number": self._events}, told["type"])
        self._events += 1
        return event

    def _usage(self) -> Json:
        usage = self._finished.usage
        cached = cached_tokens(usage)
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": cached,
                "cache_write_tokens": usage.prompt_tokens - cached if self._finished.durable else 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _code(error: AgentmemError) -> str:
    """One of the codes that OpenAI's SDKs know."""
    if isinstance(error, ResourceExhausted):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidArgument | FailedPrecondition) else "server_error"
