"""The events of a turn in OpenAI's shape: one completion, or chunks.

Beyond OpenAI's fields a completion, and the chunk with the finish_reason, hold `agentmem`: how the prompt matched the
agent's memory, tokens reused per tier, the agent's version, whether the turn is durable, and timings in seconds.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from agentmem.v1 import inference_pb2, types_pb2
from gateway.memory_report import memory_report

Json = dict[str, Any]

_LENGTH = frozenset({types_pb2.FINISH_REASON_LENGTH, types_pb2.FINISH_REASON_CONTEXT})


class ChatAnswer:
    """One turn's answer, taking shape. Feed it the events in order with `add`.

    `include_usage` is as in stream_options; `logprobs` says whether they were asked for.
    """

    def __init__(self, answer_id: str, created: int, model: str, *, logprobs: bool, include_usage: bool = False):
        self._head = {"id": answer_id, "created": created, "model": model}
        self._wants_logprobs = logprobs
        self._include_usage = include_usage
        self._texts: list[str] = []
        self._logprobs: list[Json] = []
        self._started = inference_pb2.Started()
        self.finished: inference_pb2.Finished | None = None

    def add(self, event: inference_pb2.GenerateResponse) -> None:
        """Take the next event."""
        match event.WhichOneof("event"):
            case "started":
                self._started = event.started
            case "delta":
                self._texts.append(event.delta.text)
                self._logprobs += _logprobs(event.delta.logprobs)
            case "finished":
                self.finished = event.finished

    def completion(self) -> Json:
        """The whole answer, after the finished event."""
        assert self.finished is not None
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(self._texts), "refusal": None},
            "logprobs": {"content": self._logprobs, "refusal": None} if self._wants_logprobs else None,
            "finish_reason": finish_reason(self.finished.reason),
        }
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage(self.finished.usage),
            "agentmem": memory_report(self._started, self.finished),
        }

    def chunks(self, event: inference_pb2.GenerateResponse) -> Iterator[Json]:
        """The chunks that tell of `event`, the next in order; none where it has nothing new for a reader."""
        self.add(event)
        match event.WhichOneof("event"):
            case "started":
                yield self._chunk({"role": "assistant", "content": "", "refusal": None})
            case "delta" if event.delta.text or (self._wants_logprobs and event.delta.logprobs):
                yield self._chunk({"content": event.delta.text}, logprobs=_logprobs(event.delta.logprobs))
            case "finished":
                last = self._chunk({}, finish_reason=finish_reason(event.finished.reason))
                yield {**last, "agentmem": memory_report(self._started, event.finished)}
                if self._include_usage:
                    yield {**last, "choices": [], "usage": usage(event.finished.usage)}

    def _chunk(self, delta: Json, *, logprobs: Iterable[Json] = (), finish_reason: str | None = None) -> Json:
        content = list(logprobs) if self._wants_logprobs else []
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": {"content": content, "refusal": None} if content else None,
            "finish_reason": finish_reason,
        }
        chunk: Json = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk


def finish_reason(reason: "types_pb2.FinishReason.ValueType") -> str:
    """OpenAI's word: "length" where max_tokens or the context ended it, else "stop"."""
    return "length" if reason in _LENGTH else "stop"


def usage(counts: types_pb2.Usage) -> Json:
    """Token counts; cached_tokens are those of all tiers."""
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(part.tokens for part in counts.cached)},
    }


def _logprobs(tokens: Iterable[inference_pb2.TokenLogprob]) -> list[Json]:
    return [{**_token(token), "top_logprobs": [_token(alternative) for alternative in token.top]} for token in tokens]


def _token(token: inference_pb2.TokenLogprob | inference_pb2.TokenAlternative) -> Json:
    return {
        "token": token.token_bytes.decode("utf-8", "replace"),
        "logprob": token.logprob,
        "bytes": list(token.token_bytes),
    }
