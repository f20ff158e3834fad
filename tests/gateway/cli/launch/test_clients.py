"""Settings of clients: what the guide says is a part of what `agentmem launch` gives them, which runs at night."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agentmem.console import Mistake
from gateway.cli.launch.clients import CLIENTS, KEY, NAME, Server, Settings
from tests.system.coding_clients.clients import MODEL, settings

URL = "http://127.0.0.1:8080"
CONTEXT = 131_072


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.delenv("ANTHROPIC_CUSTOM_HEADERS", raising=False)
    monkeypatch.delenv("OPENCODE_CONFIG_CONTENT", raising=False)
    monkeypatch.setenv("QWEN_CODE_SYSTEM_SETTINGS_PATH", str(tmp_path / "none.json"))
    return Server(URL, "unused", MODEL, CONTEXT, "my%20app", tmp_path)


def guide(section: str) -> Any:
    """Return the only file of a section, parsed."""
    [(name, text)] = settings(section, URL).files.items()
    return tomllib.loads(text) if name.endswith(".toml") else json.loads(text)


def is_part(told: Any, given: Any) -> bool:
    if isinstance(told, dict):
        return isinstance(given, dict) and all(name in given and is_part(told[name], given[name]) for name in told)
    if isinstance(told, list):
        return len(told) == len(given) and all(map(is_part, told, given))
    return bool(told == given)


def codex_configuration(given: Settings) -> dict[str, Any]:
    """Return the words `-c NAME=VALUE` as the file that they stand for."""
    assert given.words[::2] == ("-c",) * (len(given.words) // 2)
    return tomllib.loads("\n".join(given.words[1::2]))


def test_claude_code_has_its_variables_twice(server: Server) -> None:
    """The user's own settings may have variables, which go before those of the process."""
    given = CLIENTS["claude"].settings(server)
    assert given.words == ("--settings", str(server.folder / "settings.json"))
    assert is_part(settings("Claude Code", URL).environment, given.variables)
    assert given.variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(CONTEXT)
    assert given.variables["ANTHROPIC_CUSTOM_HEADERS"] == "X-Agent-Name: my%20app"
    no_program_for_a_key = {"apiKeyHelper": ""}
    assert json.loads(given.files["settings.json"]) == {"model": MODEL, "env": given.variables, **no_program_for_a_key}


def test_claude_code_keeps_the_users_headers_but_for_keys(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: red\nAuthorization: Bearer other\nx-api-key: other\n")
    given = CLIENTS["claude"].settings(server).variables
    assert given["ANTHROPIC_CUSTOM_HEADERS"] == "X-Team: red\nX-Agent-Name: my%20app"


@pytest.mark.parametrize(("context", "off"), [(32_768, True), (40_960, False), (CONTEXT, False)])
def test_claude_code_does_not_compact_at_each_turn(server: Server, context: int, off: bool) -> None:
    given = CLIENTS["claude"].settings(server._replace(context=context)).variables
    assert ("DISABLE_AUTO_COMPACT" in given) == off
    assert int(given["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) <= context // 8


def test_codex(server: Server) -> None:
    given = codex_configuration(CLIENTS["codex"].settings(server))
    assert is_part(guide("Codex CLI"), given)
    assert given["model_context_window"] == CONTEXT
    provider = given["model_providers"]["agentmem"]
    assert (provider["env_key"], provider["env_http_headers"]) == (KEY, {"X-Agent-Name": NAME})


def test_opencode(server: Server) -> None:
    given = json.loads(CLIENTS["opencode"].settings(server).variables["OPENCODE_CONFIG_CONTENT"])
    assert is_part(guide("opencode"), given)
    assert given["provider"]["agentmem"]["options"]["headers"] == {"X-Agent-Name": "my%20app"}
    assert given["enabled_providers"] == ["agentmem"]
    assert given["agent"] == {name: {"model": f"agentmem/{MODEL}"} for name in ("build", "plan")}


def test_opencode_keeps_the_users_settings_that_name_no_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    users = {
        "theme": "dark",
        "agent": {"build": {"model": "corp/m", "temperature": 0}, "review": {"mode": "subagent"}},
        "enabled_providers": ["corp"],
    }
    monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", json.dumps(users))
    given = json.loads(CLIENTS["opencode"].settings(server).variables["OPENCODE_CONFIG_CONTENT"])
    assert (given["theme"], given["agent"]["review"]) == ("dark", {"mode": "subagent"})
    assert given["agent"]["build"] == {"model": f"agentmem/{MODEL}", "temperature": 0}
    assert given["enabled_providers"] == ["agentmem"]
    monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", "{} // mine")
    with pytest.raises(Mistake, match=r"OPENCODE_CONFIG_CONTENT: .*without comments"):
        CLIENTS["opencode"].settings(server)


def test_pi(server: Server) -> None:
    given = CLIENTS["pi"].settings(server)
    [code] = given.files.values()
    arguments = code.removeprefix("export default (pi) => pi.registerProvider(").removesuffix(");\n")
    name, provider = json.loads(f"[{arguments}]")
    told = guide("pi")["providers"]["agentmem"]
    assert name == "agentmem" and is_part({**told, "apiKey": KEY}, provider)
    assert provider["headers"] == {"X-Agent-Name": NAME}


def test_qwen_code(server: Server) -> None:
    [text] = CLIENTS["qwen"].settings(server).files.values()
    given = json.loads(text)
    told = guide("Qwen Code")
    assert is_part(
        {**told, "modelProviders": {"openai": [{**told["modelProviders"]["openai"][0], "envKey": KEY}]}}, given
    )
    [model] = given["modelProviders"]["openai"]
    assert model["generationConfig"]["customHeaders"] == {"X-Agent-Name": "my%20app"}
    assert given["privacy"] == {"usageStatisticsEnabled": False}


def test_qwen_code_asks_the_server_itself_and_keeps_settings_of_the_machine(server: Server, tmp_path: Path) -> None:
    """It knows no NO_PROXY."""
    machines = {"tools": {"sandbox": "docker"}, "privacy": {"other": 1, "usageStatisticsEnabled": True}, "proxy": URL}
    (tmp_path / "none.json").write_text(json.dumps(machines))
    settings = CLIENTS["qwen"].settings(server)
    given = json.loads(settings.files["settings.json"])
    assert (given["tools"], given["proxy"]) == ({"sandbox": "docker"}, "")
    assert given["privacy"] == {"other": 1, "usageStatisticsEnabled": False}
    proxies = {name: value for name, value in settings.variables.items() if name.lower().endswith("_proxy")}
    assert proxies == dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"), "")
