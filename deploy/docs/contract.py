"""The gRPC contract, from the protos and their comments."""

import importlib.resources
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from grpc_tools import protoc

from deploy.docs.tables import code, table

PROTOS: Final = Path(__file__).parents[2] / "protos"
_PACKAGE: Final = ".agentmem.v1."
_SERVICE, _MESSAGE, _ENUM = 6, 4, 5  # fields of FileDescriptorProto, as paths of comments name them
_INNER, _METHOD, _FIELD, _INNER_ENUM, _VALUE = 3, 2, 2, 4, 2


@cache
def files() -> list[FileDescriptorProto]:
    """Return the contract's files with their comments. Raises RuntimeError where a proto does not compile."""
    names = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("agentmem/v1/*.proto"))
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "contract"
        includes = [f"-I{PROTOS}", f"-I{importlib.resources.files('grpc_tools') / '_proto'}"]
        if protoc.main(["protoc", *includes, "--include_source_info", f"--descriptor_set_out={out}", *names]) != 0:
            raise RuntimeError("the protos do not compile")
        return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)


def names() -> frozenset[str]:
    """Return the names of all messages at the top of a file."""
    return frozenset(message.name for file in files() for message in file.message_type)


def page() -> str:
    """Return services first, then all messages and enums by file."""
    found = [_File(file) for file in files()]
    services = "\n".join(part for file in found for part in file.services())
    types = "\n".join(f"## {file.title}\n\n" + "\n".join(file.types()) for file in found)
    return f"{services}\n{types}"


class _File:
    """One proto, and its comments by path."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments = {tuple(each.path): each.leading_comments for each in file.source_code_info.location}
        self.title = f"{Path(file.name).stem}.proto"

    def services(self) -> Iterator[str]:
        for number, service in enumerate(self._file.service):
            yield f"## {service.name}\n\n{self._comment(_SERVICE, number)}\n"
            for place, method in enumerate(service.method):
                ways = ("stream " * method.client_streaming, "stream " * method.server_streaming)
                kinds = [
                    f"{way}{_link(kind)}"
                    for way, kind in zip(ways, (method.input_type, method.output_type), strict=True)
                ]
                yield f"### {service.name}.{method.name}\n\n{kinds[0]} → {kinds[1]}\n"
                yield self._comment(_SERVICE, number, _METHOD, place) + "\n"

    def types(self) -> Iterator[str]:
        for number, message in enumerate(self._file.message_type):
            yield from self._message(message, "", (_MESSAGE, number))
        for number, enum in enumerate(self._file.enum_type):
            yield self._enum(enum, "", (_ENUM, number))

    def _message(self, message: DescriptorProto, outer: str, path: tuple[int, ...]) -> Iterator[str]:
        name = f"{outer}{message.name}"
        maps = {f"{_PACKAGE}{name}.{each.name}": each for each in message.nested_type if each.options.map_entry}
        rows = [
            (code(field.name), _type(field, maps), field.number, self._comment(*path, _FIELD, number))
            for number, field in enumerate(message.field)
        ]
        yield f"### {name}\n\n{self._comment(*path)}\n\n" + table(("field", "type", "number", "meaning"), rows)
        for number, inner in enumerate(message.nested_type):
            if not inner.options.map_entry:
                yield from self._message(inner, f"{name}.", (*path, _INNER, number))
        for number, enum in enumerate(message.enum_type):
            yield self._enum(enum, f"{name}.", (*path, _INNER_ENUM, number))

    def _enum(self, enum: EnumDescriptorProto, outer: str, path: tuple[int, ...]) -> str:
        rows = [
            (code(value.name), value.number, self._comment(*path, _VALUE, number))
            for number, value in enumerate(enum.value)
        ]
        head = f"### {outer}{enum.name}\n\n{self._comment(*path)}\n\n"
        return head + table(("value", "number", "meaning"), rows)

    def _comment(self, *path: int) -> str:
        lines = self._comments.get(path, "").splitlines()
        text = "\n".join(line.removeprefix(" ") for line in lines).strip()
        return re.sub(r"[<>*]", lambda match: f"\\{match[0]}", text)


def _type(field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> str:
    if field.type_name in maps:
        key, value = maps[field.type_name].field
        return f"map of {_type(key, {})} to {_type(value, {})}"
    name = _link(field.type_name) if field.type_name else FieldDescriptorProto.Type.Name(field.type)[5:].lower()
    repeated = "repeated " * (field.label == FieldDescriptorProto.LABEL_REPEATED)
    return f"{repeated}{'optional ' * field.proto3_optional}{name}"


def _link(type_name: str) -> str:
    if not type_name.startswith(_PACKAGE):
        return code(type_name.removeprefix("."))
    name = type_name.removeprefix(_PACKAGE)
    return f"[{name}](#{name.lower().replace('.', '')})"
