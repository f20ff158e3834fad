"""A scripted worker's part of a turn's request. Input and sampling change nothing."""

import hashlib
from typing import Any, Final, cast

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2
from agentmem.validation import MAX_REQUEST_ID_BYTES, AgentKey, IdleTimes, check_revision, check_text
from benchmarks.cluster.lists import is_element
from inference_service.domain import TextInput, TurnRequest

_NOT_REPEATED: Final = ("request_id", "if_version", "if_revision", "memory_mode", "expiry", "context_policy")
"""A retry may differ in these; the real worker's list is beside imports of tokenizers."""


def turn_request(request: inference_pb2.GenerateRequest | inference_pb2.PrefillRequest) -> TurnRequest:
    """The turn that is asked for. Raises InvalidArgument."""
    generates = isinstance(request, inference_pb2.GenerateRequest)
    policy = inference_pb2.CACHE_POLICY_UNSPECIFIED
    if isinstance(request, inference_pb2.GenerateRequest):
        policy = request.cache_policy
    asked = TurnRequest(
        key=AgentKey.from_proto(request.key, anonymous=generates),
        input=TextInput(""),
        digest=_digest(request),
        request_id=check_text("request_id", request.request_id, max_bytes=MAX_REQUEST_ID_BYTES, allow_empty=True),
        if_version=request.if_version if request.HasField("if_version") else None,
        if_revision=check_revision("if_revision", request.if_revision),
        cache_policy=policy or inference_pb2.CACHE_POLICY_KEEP,
        generates=generates,
        label=check_text("label", request.label, allow_empty=True),
        expiry=IdleTimes.from_proto(request.expiry, "expiry."),
        context_policy=request.context_policy,
    )
    if asked.commits and not is_element(asked.request_id):
        raise InvalidArgument("request_id", "must be one line of text: it is what a scripted worker appends")
    return asked


def _digest(request: inference_pb2.GenerateRequest | inference_pb2.PrefillRequest) -> bytes:
    arguments = cast(Any, type(request)())
    arguments.CopyFrom(request)
    for name in _NOT_REPEATED:
        if name in arguments.DESCRIPTOR.fields_by_name:
            arguments.ClearField(name)
    return hashlib.sha256(arguments.SerializeToString(deterministic=True)).digest()
