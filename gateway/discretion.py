"""What callers who are no admins are not told: where on the server's disk its models are.

Names of files stay, so that "model.safetensors is truncated" still says what is wrong. At doors without keys everybody
is an admin.
"""

import re
from collections.abc import Iterator
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from agentmem.models import is_path
from agentmem.v1 import model_pb2
from gateway.callers import Caller

_PATH = re.compile(
    r"""
    (?P<quote>['"])[~.]{0,2}/(?:[^'"]*/)?(?P<quoted>[^'"/]+)/?(?P=quote)   # may hold spaces
    | (?<![\w/.~:+-])[~.]{0,2}/(?:[^/\s'":;,()]+/)*(?P<plain>[^/\s'":;,()]+)
    """,
    re.VERBOSE,
)


def without_directories(text: str) -> str:
    """`text` in which paths are their last parts."""
    return _PATH.sub(_last_part, text)


def discreet(response: Message, who: Caller) -> None:
    """Take out of the models in `response`, in place, what `who` is not told."""
    if not who.admin:
        for model in _models(response):
            _hide(model)


def may_name_directories(response: Descriptor) -> bool:
    """Whether a response of that type may hold models."""
    return response is _MODEL or bool(_fields(response))


def _last_part(path: re.Match[str]) -> str:
    quote = path["quote"] or ""
    return f"{quote}…/{path['quoted'] or path['plain']}{quote}"


def _hide(model: model_pb2.Model) -> None:
    model.adapter = ""
    if is_path(model.source):
        model.source = ""
    model.error = without_directories(model.error)


_MODEL = model_pb2.Model.DESCRIPTOR


def _models(message: Message) -> Iterator[model_pb2.Model]:
    if isinstance(message, model_pb2.Model):
        yield message
    for field in _fields(message.DESCRIPTOR):
        if field.is_repeated:
            for part in getattr(message, field.name):
                yield from _models(part)
        elif message.HasField(field.name):
            yield from _models(getattr(message, field.name))


@cache
def _fields(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    """The fields of a message that are a model."""
    return tuple(field for field in descriptor.fields if field.message_type is _MODEL)
