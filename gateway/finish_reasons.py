"""Why a turn ended, in the words that OpenAI's endpoints and the command line share."""

from agentmem.v1 import types_pb2

_LENGTH = frozenset({types_pb2.FINISH_REASON_LENGTH, types_pb2.FINISH_REASON_CONTEXT})


def cut_short(reason: "types_pb2.FinishReason.ValueType") -> bool:
    """Whether the limit of tokens, or the context, ended the turn."""
    return reason in _LENGTH


def finish_reason(reason: "types_pb2.FinishReason.ValueType") -> str:
    """ "length" where max_tokens or the context ended it, "tool_calls" after calls, else "stop"."""
    if reason == types_pb2.FINISH_REASON_TOOL_CALLS:
        return "tool_calls"
    return "length" if cut_short(reason) else "stop"
