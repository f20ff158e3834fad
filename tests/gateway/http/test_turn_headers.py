"""Headers of a turn: what the document says of a value is what is read."""

import re

import pytest
from starlette.datastructures import Headers

from agentmem.errors import InvalidArgument
from gateway.http.requests import TURN_HEADER, TurnName, read_headers

DOCUMENTED = re.compile(TurnName.model_json_schema()["properties"][TURN_HEADER]["pattern"])


def test_a_value_is_accepted_where_it_is_documented() -> None:
    for code in range(1, 256):
        value = f"a{chr(code)}b"
        headers = Headers(raw=[(TURN_HEADER.lower().encode(), value.encode("latin-1"))])
        if DOCUMENTED.fullmatch(value):
            assert read_headers(headers, TurnName).turn == value
        else:
            with pytest.raises(InvalidArgument, match="printable ASCII"):
                read_headers(headers, TurnName)
