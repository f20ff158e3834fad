"""Path and query of a REST request as fields of the RPC's request."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from agentmem.errors import InvalidArgument
from agentmem.keys import check_text
from gateway.http.requests import check_percent_encoding, percent_decoded
from gateway.rest.endpoints import Endpoint, Parameter, Values, field_of

_MOST_PARAMETERS: Final = 16
_MOST_TEXT: Final = 4096
_INT32: Final = range(-(2**31), 2**31)
_INTEGER: Final = re.compile(r"-?[0-9]{1,10}")


def given(endpoint: Endpoint, path: Mapping[str, str], query: bytes) -> Values:
    """The parameters of a request: parts of its path, still percent-encoded, and its query.

    Raises InvalidArgument for unknown, repeated, missing, contradictory and ill-formed ones.
    """
    values: dict[str, str | int | bool] = {name: percent_decoded(name, part) for name, part in path.items()}
    known = {parameter.name: parameter for parameter in endpoint.query}
    for name, text in _pairs(query):
        if name not in known:
            raise InvalidArgument("query", f"has a parameter that is none of {', '.join(known) or 'none'}")
        if name in values:
            raise InvalidArgument(name, "is given more than once")
        values[name] = _value(endpoint, known[name], text)
    endpoint.check(values)
    return values


def fill_parameters(message: Message, endpoint: Endpoint, values: Values) -> None:
    """Set the fields that `values` mean."""
    fields = {**endpoint.path_parameters, **{parameter.name: parameter.field for parameter in endpoint.query}}
    for name, value in values.items():
        if fields[name]:
            *outer, last = fields[name].split(".")
            target: Any = message
            for part in outer:
                target = getattr(target, part)
            setattr(target, last, value)


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        text = query.decode("ascii")
        check_percent_encoding("query", text)
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
    except UnicodeDecodeError:
        raise InvalidArgument("query", "is not percent-encoded UTF-8") from None
    except ValueError:
        raise InvalidArgument("query", f"has more than {_MOST_PARAMETERS} parameters") from None


def _value(endpoint: Endpoint, parameter: Parameter, text: str) -> str | int | bool:
    kind = field_of(endpoint.rpc, parameter.field).type if parameter.field else FieldDescriptor.TYPE_BOOL
    if kind == FieldDescriptor.TYPE_BOOL:
        if text not in ("true", "false"):
            raise InvalidArgument(parameter.name, "must be true or false")
        return text == "true"
    if kind == FieldDescriptor.TYPE_INT32:
        if not _INTEGER.fullmatch(text) or int(text) not in _INT32:
            raise InvalidArgument(parameter.name, "must be a whole number of 32 bits")
        return int(text)
    if parameter.field == "page_token":
        return check_text(parameter.name, text, max_bytes=_MOST_TEXT, allow_empty=True)
    return check_text(parameter.name, text)
