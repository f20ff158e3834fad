"""Whatever a request holds, it becomes turns or is refused in words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import AgentmemError
from gateway.api.errors import dialect_of
from gateway.api.validation import parse_body

from .dialects import DIALECTS, INCOMING, Dialect

WORDS = [
    *("tool_use", "tool_result", "thinking", "redacted_thinking", "system", "id", "input", "tool_use_id", "data"),
    *("type", "role", "content", "text", "format", "schema", "name", "arguments", "call_id", "output", "summary"),
    *("function", "parameters", "strict", "user", "assistant", "input_text", "output_text", "message", "json_schema"),
    *("function_call", "function_call_output", "reasoning", "resp_" + "0" * 48, "\ud800", ""),
]
NAMES = st.sampled_from(WORDS) | st.text(max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(WORDS)}, optional={name: VALUES | st.just("x") for name in WORDS if name != "type"}
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.lists(BLOCK, max_size=3) | VALUES}
)
ANY = VALUES | BLOCK | st.lists(MESSAGE, min_size=1, max_size=3)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@given(st.data())
def test_any_body(dialect: Dialect, data: st.DataObject) -> None:
    fields = st.sampled_from(sorted(dialect.schema.model_fields))
    changed = data.draw(st.dictionaries(fields | st.text(max_size=5), ANY, max_size=3))
    sent = json.dumps({"model": "m", **dialect.body, **changed}).encode()
    refusal: AgentmemError | None = None
    try:
        exchange = dialect.translate(parse_body(sent, dialect.schema), INCOMING)
    except AgentmemError as error:
        refusal = error
    if refusal is not None:
        assert refusal.http_status in (400, 404)
        page = dialect_of(dialect.path, anthropic=False).body(refusal)["error"]
        assert page["message"] and page["type"] == "invalid_request_error"
        json.dumps(page, ensure_ascii=False).encode()
        return
    assert exchange.turns
    assert all(turn.SerializeToString() for turn in exchange.turns)
    json.dumps(exchange.answer.body(), allow_nan=False).encode()
