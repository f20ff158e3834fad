"""Requests of clients as they were sent, in the second turn of a session with tools; long texts are replaced.

`tests/system/test_coding_clients.py` has the clients themselves make them.
"""

import json
from pathlib import Path

import pytest

from gateway.api.exchange import Exchange
from gateway.api.kept_responses import references
from gateway.api.responses_schema import ResponseRequest
from gateway.api.validation import parse_body

from .dialects import DIALECTS, INCOMING

RECORDED = Path(__file__).parent / "recorded"
TURN = ["assistant", "tool", "assistant", "user", "assistant", "tool"]


def translated(name: str) -> Exchange:
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    path = recorded["path"].partition("?")[0]
    [dialect] = [each for each in DIALECTS.values() if each.path == path]
    exchange: Exchange = dialect.translate(parse_body(json.dumps(recorded["body"]).encode(), dialect.schema), INCOMING)
    return exchange


@pytest.mark.parametrize(
    ("name", "roles", "left_out"),
    [
        ("claude-code", ["system", "user", "system", *TURN], []),
        ("codex", ["system", "system", "user", "user", *TURN], ["web_search", "client_metadata"]),
        ("qwen-code", ["system", "user", "assistant", "user", *TURN], []),
        ("claude-code-through-litellm", ["system", "user", "system", *TURN], []),
        ("opencode", ["system", "user", *TURN], []),
        ("pi", ["system", "user", *TURN], ["store"]),
        ("cline", ["system", "user", *TURN], []),
        ("continue", ["system", "user", *TURN], []),
    ],
)
def test_requests_of_coding_clients(name: str, roles: list[str], left_out: list[str]) -> None:
    exchange = translated(name)
    (turn,) = exchange.turns
    assert [message.role for message in turn.messages.messages] == roles
    assert (exchange.streamed, list(exchange.others), exchange.left_out) == (True, left_out, [])
    assert "4711" in turn.messages.messages[-1].content
    assert turn.tool_calls and json.loads(turn.messages.tools_json)
    assert "billing" not in turn.messages.messages[0].content


def test_a_request_of_aider() -> None:
    (turn,) = translated("aider").turns
    roles = [message.role for message in turn.messages.messages]
    assert roles == ["system", *["user", "assistant"] * 4, "user"]
    assert not turn.tool_calls


def test_the_ai_sdk_refers_to_an_item() -> None:
    recorded = json.loads((RECORDED / "ai-sdk.json").read_text())
    request = parse_body(json.dumps(recorded["body"]).encode(), ResponseRequest)
    assert references(request) == ["msg_997a1fdf0e5a49b9bb539c10b8abe3b140699ac2a7faf870_0"]


def test_tools_of_codex_have_the_names_of_their_namespaces() -> None:
    (turn,) = translated("codex").turns
    names = [tool["function"]["name"] for tool in json.loads(turn.messages.tools_json)]
    assert "exec_command" in names
    assert any(name.startswith("multi_agent_v1__") for name in names)
