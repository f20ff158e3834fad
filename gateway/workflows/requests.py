"""The works of a run as requests to the worker. Pure."""

from datetime import timedelta
from typing import Final

from agentmem.v1 import inference_pb2, types_pb2
from gateway.workflows.definition.schema import Definition
from gateway.workflows.hearing import Listening
from gateway.workflows.program import Turn

_KEPT_FOR: Final = timedelta(days=7)
"""Idle time after which an agent is deleted that a run left behind, because nobody resumed it."""


def speak_request(
    definition: Definition, turn: Turn, key: types_pb2.AgentKey, request_id: str
) -> inference_pb2.GenerateRequest:
    """A turn: the agent reads its message and speaks."""
    request = _generate(definition, turn.agent, turn.message, key, request_id)
    request.max_tokens = turn.max_tokens
    if turn.json_schema:
        request.json_schema = turn.json_schema
    return request


def note_request(
    definition: Definition, listening: Listening, key: types_pb2.AgentKey, request_id: str
) -> inference_pb2.GenerateRequest:
    """The agent reads what it heard and notes something."""
    request = _generate(definition, listening.agent, listening.message, key, request_id)
    request.max_tokens = definition.agents[listening.agent].max_tokens or definition.defaults.max_tokens
    return request


def listen_request(
    definition: Definition, listening: Listening, key: types_pb2.AgentKey, request_id: str
) -> inference_pb2.PrefillRequest:
    """The agent takes its message in. Who is introduced must have no memory yet."""
    request = inference_pb2.PrefillRequest(
        key=key,
        request_id=request_id,
        append=_append(listening.role, listening.message),
        expiry=_expiry(definition, listening.agent),
    )
    if listening.role == "system":
        request.if_version = 0
    return request


def _generate(
    definition: Definition, agent: str, message: str, key: types_pb2.AgentKey, request_id: str
) -> inference_pb2.GenerateRequest:
    sampling = definition.agents[agent].sampling or definition.defaults.sampling
    return inference_pb2.GenerateRequest(
        key=key,
        request_id=request_id,
        append=_append("user", message),
        sampling=types_pb2.Sampling(**sampling.model_dump(exclude_none=True)),
        stop=definition.defaults.stop,
        expiry=_expiry(definition, agent),
    )


def _append(role: str, text: str) -> types_pb2.Append:
    message = types_pb2.ChatMessage(role=role, content=text)
    return types_pb2.Append(messages=types_pb2.Messages(messages=[message]))


def _expiry(definition: Definition, agent: str) -> types_pb2.Expiry:
    expiry = types_pb2.Expiry()
    if not definition.agents[agent].persist:
        expiry.delete_after.FromTimedelta(_KEPT_FOR)
    return expiry
