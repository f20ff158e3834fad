"""Requests that cost more to refuse than to send, made from the contract's descriptors, so of new fields, too."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from agentmem.v1 import agent_pb2, inference_pb2, model_pb2, types_pb2, workflow_pb2
from tests.wire import tagged, varint

SERVICES = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
    agent_pb2.DESCRIPTOR.services_by_name["AgentService"],
    model_pb2.DESCRIPTOR.services_by_name["ModelService"],
    workflow_pb2.DESCRIPTOR.services_by_name["WorkflowService"],
)
"""The services of the gateway's gRPC listener."""

_TEXTS: dict[str, Callable[[int], bytes]] = {
    "letters": lambda size: b"a" * size,
    "no UTF-8": lambda size: b"a" * (size - 1) + b"\xff",
}
_SAID: dict[str, Callable[[int], bytes]] = {
    **_TEXTS,
    "words": lambda size: b"y " * (size // 2),
    "specials": lambda size: b"<|im_end|>" * (size // 10),
}
_SAYING = frozenset(("content", "reasoning_content", "name", "tool_call_id", "prompt", "text"))
"""Fields whose text is tokenized."""
_JSON: dict[str, Callable[[int], bytes]] = {
    "empty arrays": lambda size: b"[" + b"[]," * (size // 3) + b"[]]",
    "numbers": lambda size: b"[" + b"1," * (size // 2) + b"1]",
    "members": lambda size: b"{" + b",".join(b'"%x":{}' % i for i in range(size // 14)) + b"}",
    "objects": lambda size: b"[" + b"{}," * (size // 3) + b"{}]",
    "deep": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
}
_YAML: dict[str, Callable[[int], bytes]] = {
    "items": lambda size: b"- a\n" * (size // 4),
    "deep": lambda size: b"[" * size,
    "members": lambda size: b"".join(b"a%x: 1\n" % i for i in range(size // 12)),
    "agents": lambda size: b"workflow: x\nagents: {" + b",".join(b"a%x: {}" % i for i in range(size // 14)) + b"}\n",
}


class Attack(NamedTuple):
    """A request to an RPC; `messages` makes it, or the messages of an upload, of about so many bytes."""

    method: MethodDescriptor
    name: str
    messages: Callable[[int], list[bytes]]

    def __str__(self) -> str:
        return f"{self.method.name}: {self.name}"


def attacks(model: str) -> Iterator[Attack]:
    for service in SERVICES:
        for method in service.methods:
            if method.client_streaming:
                yield from _uploads(method, model)
            else:
                for name, data in _requests(method.input_type, model):
                    yield Attack(method, name, lambda size, data=data: [data(size)])  # type: ignore[misc]


def attack(model: str, method: str, name: str) -> Attack:
    (found,) = [each for each in attacks(model) if str(each) == f"{method}: {name}"]
    return found


def _uploads(method: MethodDescriptor, model: str) -> Iterator[Attack]:
    key = types_pb2.AgentKey(agent_id="imported", model_id=model).SerializeToString()
    for name, text in _JSON.items():
        yield Attack(method, name, lambda size, text=text: [tagged(1, key), *_chunks(text(size))])  # type: ignore[misc]
    yield Attack(method, "one chunk", lambda size: [tagged(1, key), tagged(2, b"\0" * size)])
    yield Attack(method, "empty chunks", lambda size: [tagged(1, key), *[tagged(2, b"")] * min(20_000, size // 2)])


def _chunks(header: bytes) -> list[bytes]:
    file, piece = len(header).to_bytes(8, "little") + header, 1 << 18
    return [tagged(2, file[at : at + piece]) for at in range(0, len(file), piece)]


def _requests(descriptor: Descriptor, model: str) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    base = _base(descriptor, model)
    for way in _ways(descriptor):
        path = ".".join(field.name for field in way)
        for name, fill in _fills(way[-1]).items():
            yield f"{path}, {name}", partial(_filled, base, way, fill)
    for name, whole in _WHOLE.items():
        yield name, partial(_filled, base, [], whole)
    for oneof in descriptor.oneofs:
        turns = b"".join(tagged(field.number, b"") for field in oneof.fields if field.message_type is not None)
        if len(turns) > 2:
            yield f"{oneof.name} in turn", partial(_filled, base, [], _repeating(turns))


def _repeating(piece: bytes) -> Callable[[int], bytes]:
    return lambda size: piece * (size // len(piece))


def _filled(base: bytes, way: list[FieldDescriptor], fill: Callable[[int], bytes], size: int) -> bytes:
    """Return a request with so many bytes in the last field of `way`, and what messages on the way are refused without.

    What fills a repeated field is whole elements.
    """
    payload = fill(size)
    for place, field in reversed([*enumerate(way)]):
        if not field.is_repeated or place < len(way) - 1:
            payload = tagged(field.number, payload)
        payload = _BESIDE.get(field.containing_type.full_name, b"") + payload
    return base + payload


_KEY: bytes = types_pb2.AgentKey(agent_id="a", model_id="a").SerializeToString()
_MESSAGE: bytes = types_pb2.ChatMessage(role="a", content="a").SerializeToString()
_BESIDE: dict[str, bytes] = {
    "agentmem.v1.ChatMessage": _MESSAGE,
    "agentmem.v1.Messages": tagged(1, _MESSAGE),
    "agentmem.v1.TurnHint": tagged(1, _KEY),
}


_WHOLE: dict[str, Callable[[int], bytes]] = {
    "no end of a number": lambda size: b"\xff" * size,
    "unknown numbers": lambda size: (varint(2000 << 3) + b"\0") * (size // 3),
    "unknown groups": lambda size: varint(2000 << 3 | 3) * (size // 2),
    "random": lambda size: random.Random(size).randbytes(size),
}


def _base(descriptor: Descriptor, model: str) -> bytes:
    request: Any = GetMessageClass(descriptor)()
    names = descriptor.fields_by_name
    if "key" in names:
        request.key.agent_id, request.key.model_id = "attacked", model
    if "model_id" in names:
        request.model_id = model
    if "max_tokens" in names:
        request.max_tokens = 1
    if "new_agent_id" in names:
        request.new_agent_id = "fork"
    data: bytes = request.SerializeToString()
    return data


def _ways(descriptor: Descriptor) -> Iterator[list[FieldDescriptor]]:
    """Yield the way to each field that can be long: repeated ones, texts and bytes."""
    for field in descriptor.fields:
        if field.is_repeated or field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            yield [field]
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from ([field, *way] for way in _ways(field.message_type))


def _fills(field: FieldDescriptor) -> dict[str, Callable[[int], bytes]]:
    if not field.is_repeated:
        if field.name == "definition_yaml":
            return _TEXTS | _YAML
        if "json" in field.name:
            return _SAID | _JSON
        return _SAID if field.name in _SAYING else _TEXTS
    if field.message_type is None and field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        one = varint(field.number << 3) + b"\1"
        return {"packed": lambda size: tagged(field.number, b"\1" * size), "not packed": _repeating(one)}
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {"members": lambda size: (some := b"".join(_members(field, 100_000))) * (size // len(some))}
    if field.message_type is None:
        return {"empty": _repeating(tagged(field.number, b"")), "small": _repeating(tagged(field.number, b"a"))}
    element = _BESIDE.get(field.message_type.full_name, b"")
    return {"empty": _repeating(tagged(field.number, b"")), "small": _repeating(tagged(field.number, element))}


def _members(field: FieldDescriptor, count: int) -> Iterator[bytes]:
    text = field.message_type.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING
    for number in range(count):
        yield tagged(field.number, tagged(1, b"%x" % number) if text else b"\x08" + varint(number))
