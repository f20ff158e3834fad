"""Whose memory a request may name: an empty namespace means the caller's, any other than that is refused.

The fields are found by the contract's descriptors, so that an RPC added later cannot be forgotten here.
"""

from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from agentmem.errors import PermissionDenied
from agentmem.v1 import types_pb2

_KEY = types_pb2.AgentKey.DESCRIPTOR


def claim(request: Message, namespace: str, at: str = "") -> None:
    """Fill `namespace` into every empty namespace of `request`, in place.

    Raises PermissionDenied that names the field where it holds another one. `at` is the path of `request` itself.
    """
    for field in _fields(request.DESCRIPTOR):
        path = f"{at}{field.name}"
        if field.message_type is None:
            asked = getattr(request, field.name)
            if asked and asked != namespace:
                raise PermissionDenied(f"{path}: the namespace {asked!r} is not yours; leave it empty")
            setattr(request, field.name, namespace)
        elif field.is_repeated:
            for index, part in enumerate(getattr(request, field.name)):
                claim(part, namespace, f"{path}[{index}].")
        elif field.containing_oneof is None or request.HasField(field.name):
            claim(getattr(request, field.name), namespace, f"{path}.")


@cache
def _fields(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    """The fields of a message that are a namespace or hold one."""
    return tuple(
        field
        for field in descriptor.fields
        if (field.name == "namespace" and field.type == FieldDescriptor.TYPE_STRING)
        or (field.message_type is not None and _holds_namespace(field.message_type))
    )


def _holds_namespace(descriptor: Descriptor) -> bool:
    return descriptor is _KEY or (not descriptor.GetOptions().map_entry and bool(_fields(descriptor)))
