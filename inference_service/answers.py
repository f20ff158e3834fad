"""What a turn answers, as messages of the contract. Pure."""

from collections.abc import Iterable
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from agentmem.v1 import inference_pb2
from inference_service.domain import TokenEvent, ToolCall
from inference_service.text.answering import NO_DELTA, AnswerDelta
from inference_service.text.tokenizer import Tokenizer


def duration(seconds: float) -> Duration:
    """Seconds as a message."""
    message = Duration()
    message.FromTimedelta(timedelta(seconds=max(0.0, seconds)))
    return message


def delta(events: Iterable[TokenEvent], tokenizer: Tokenizer, rest: AnswerDelta = NO_DELTA) -> inference_pb2.Delta:
    """Several tokens in one delta, and what became certain when generation ended."""
    message = inference_pb2.Delta()
    for event in events:
        message.reasoning += event.reasoning
        message.text += event.text
        message.tool_calls.extend(_call(call) for call in event.calls)
        message.token_ids.append(event.token_id)
        if event.logprob is not None:
            message.logprobs.add(
                token_id=event.token_id,
                logprob=event.logprob,
                token_bytes=tokenizer.token_bytes(event.token_id),
                reasoning=event.in_reasoning,
                top=[
                    inference_pb2.TokenAlternative(token_id=i, logprob=p, token_bytes=tokenizer.token_bytes(i))
                    for i, p in event.top
                ],
            )
    message.reasoning += rest.reasoning
    message.text += rest.text
    message.tool_calls.extend(_call(call) for call in rest.calls)
    return message


def _call(call: ToolCall) -> inference_pb2.ToolCall:
    return inference_pb2.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments_json)
