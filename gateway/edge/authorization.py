"""The rights of a caller: its own namespace, RPCs that need no admin, and models without their directories.

The contract's descriptors say which fields are namespaces, so that no RPC is forgotten.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from agentmem.errors import InvalidArgument, PermissionDenied
from agentmem.process.model_sources import is_path
from agentmem.rpcs import RPCS
from agentmem.v1 import model_pb2, types_pb2
from agentmem.validation import check_text
from gateway.edge.callers import Caller, serves_admin

_ADMIN: Final = frozenset(rpc.path for rpc in RPCS.values() if rpc.options.admin)
_KEY: Final = types_pb2.AgentKey.DESCRIPTOR
_MODEL: Final = model_pb2.Model.DESCRIPTOR


def check_namespace(value: str) -> str:
    """Raises ValueError."""
    try:
        return check_text("namespace", value)
    except InvalidArgument as error:
        raise ValueError(error.problem) from None


def require_admin(who: Caller) -> None:
    if not who.admin:
        raise PermissionDenied(
            "this concerns the callers of all namespaces, so it needs a key with admin = true; "
            "`agentmem keys create --admin` makes one"
        )


def authorize(method: str, who: Caller) -> None:
    """Raise PermissionDenied unless `who` may call `method`, such as "/agentmem.v1.ModelService/LoadModel"."""
    if method in _ADMIN:
        require_admin(who)


def authorize_namespace(request: Message, namespace: str, at: str = "") -> None:
    """Fill `namespace` into every empty namespace of `request`.

    Raises PermissionDenied that names the field where it holds another one, and InvalidArgument where it can be none.
    """
    for field in _namespace_fields(request.DESCRIPTOR):
        path = f"{at}{field.name}"
        if field.message_type is None:
            asked = check_text(path, getattr(request, field.name), allow_empty=True)
            if asked and asked != namespace:
                raise PermissionDenied(f"{path}: the namespace {asked!r} is not yours; leave it empty")
            setattr(request, field.name, namespace)
        elif field.is_repeated:
            for index, part in enumerate(getattr(request, field.name)):
                authorize_namespace(part, namespace, f"{path}[{index}].")
        elif field.containing_oneof is None or request.HasField(field.name):
            authorize_namespace(getattr(request, field.name), namespace, f"{path}.")


@cache
def _namespace_fields(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    return tuple(
        field
        for field in descriptor.fields
        if (field.name == "namespace" and field.type == FieldDescriptor.TYPE_STRING)
        or (field.message_type is not None and _holds_namespace(field.message_type))
    )


def _holds_namespace(descriptor: Descriptor) -> bool:
    return descriptor is _KEY or (not descriptor.GetOptions().map_entry and bool(_namespace_fields(descriptor)))


_PATH = re.compile(
    r"""
    (?P<quote>['"])[~.]{0,2}/(?:[^'"]*/)?(?P<quoted>[^'"/]+)/?(?P=quote)   # may hold spaces
    | (?<![\w/.~:+-])[~.]{0,2}/(?:[^/\s'":;,()]+/)*(?P<plain>[^/\s'":;,()]+)
    """,
    re.VERBOSE,
)


def without_directories(text: str) -> str:
    """Return `text` with names of files for their paths: "model.safetensors is truncated" still says what is wrong."""
    return _PATH.sub(_last_part, text)


def redact(response: Message) -> None:
    """Remove where models are on the disk, in place, unless an admin is served."""
    if not serves_admin():
        for model in _models(response):
            model.adapter = ""
            if is_path(model.source):
                model.source = ""
            model.error = without_directories(model.error)


def _last_part(path: re.Match[str]) -> str:
    quote = path["quote"] or ""
    return f"{quote}…/{path['quoted'] or path['plain']}{quote}"


def _models(message: Message) -> Iterator[model_pb2.Model]:
    if isinstance(message, model_pb2.Model):
        yield message
    for field in _model_fields(message.DESCRIPTOR):
        value = getattr(message, field.name)
        if field.is_repeated:
            yield from value
        elif message.HasField(field.name):
            yield value


@cache
def _model_fields(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    return tuple(field for field in descriptor.fields if field.message_type is _MODEL)
