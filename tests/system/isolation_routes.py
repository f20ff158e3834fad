"""The table of every route, beside that of the RPCs: what a caller of one namespace may see of another's.

Each entry is a request that ada makes, of things that only bob has. Whoever adds a route adds its entries here:
tests/system/test_isolation.py compares the table with the application's routes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import httpx

from agentmem.v1 import types_pb2
from gateway.api.responses import Beginning, number_of_key, response_id
from tests.system.isolation import AGENT, EXPORTED, MODEL, PROMPT, SECRET, SNAPSHOT, TURN, WORKFLOW, kept


@dataclass(frozen=True)
class Http:
    """A request. `says` is the status, or true of the response. `open`: answered without a key, too.

    `bobs`: it changes nothing of bob's or only lets him say more, and bob, who asks it before ada does, is told
    something else from the second time on. So an entry that would pass whatever is answered is found out. `repeated`:
    an entry before has deleted the same; in a cluster that is not over until all nodes have followed it, and its
    repetition is told that nothing was deleted.
    """

    url: str
    says: int | Callable[[httpx.Response], object]
    body: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    content: Sequence[bytes] = ()
    open: bool = False
    bobs: bool = False
    repeated: bool = False

    def fits(self, got: httpx.Response) -> bool:
        if self.repeated and got.status_code == 200:
            return bool(got.json()["deleted"] == 0)
        if isinstance(self.says, int):
            return got.status_code == self.says
        return got.status_code == 200 and bool(self.says(got))


def _json_messages(messages: types_pb2.Messages) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages.messages]


def _named(agent: str, turn: str = "") -> dict[str, str]:
    return {"x-agent-id": agent, **({"idempotency-key": turn} if turn else {})}


def _chat(agent: str) -> dict[str, Any]:
    return {"model": MODEL, "messages": _json_messages(kept(agent)), "max_tokens": 2}


def _claude(agent: str) -> dict[str, Any]:
    system, question = _json_messages(kept(agent))
    return {"model": MODEL, "system": system["content"], "messages": [question], "max_tokens": 2}


def _response(agent: str) -> dict[str, Any]:
    return {"model": MODEL, "input": _json_messages(kept(agent)), "max_output_tokens": 2}


def _chatted(got: httpx.Response) -> bool:
    return got.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and _new(got)


def _responded(got: httpx.Response) -> bool:
    return got.json()["usage"]["input_tokens_details"]["cached_tokens"] == 0 and _new(got)


def _messaged(got: httpx.Response) -> bool:
    return got.json()["usage"]["cache_read_input_tokens"] == 0 and _new(got)


def _new(got: httpx.Response) -> bool:
    """A turn of a memory that was never there."""
    report = got.json()["agentmem"]
    return (report["match"], report["cached"], report["replayed"]) == ("new", {}, False)


def _rest_new(got: httpx.Response) -> bool:
    told = got.json()
    cache = told.get("started", told)["cache"]
    replayed = "finished" in told and told["finished"]["replayed"]
    return (cache["match"], cache["cached"], cache["load_bytes"], replayed) == ("new", {}, 0, False)


def _agents(got: httpx.Response) -> set[str]:
    return {agent["key"]["agent_id"] for agent in got.json()["agents"]}


def _bobs_run(got: httpx.Response) -> bool:
    return BOBS_RUN in got.text


def _shared(*models: dict[str, Any]) -> bool:
    return [(model["id"], model["agentmem"]["source"]) for model in models] == [(MODEL, "")]


BOBS_RUN = "wf-" + sha256(b"bob\0bobs-run").hexdigest()[:20]
"""The id of bob's run of a workflow."""

RESPONSE = response_id(number_of_key("bobs-response"), Beginning.of("", ""))
"""The id of the response that bob gets under that Idempotency-Key."""

_REST = f"/v1/agents/{AGENT}"
_ON_MODEL = f"?model={MODEL}"
_MESSAGES: dict[str, Any] = {"messages": {"messages": _json_messages(PROMPT)}}
_READ_ONLY: dict[str, Any] = {**_MESSAGES, "max_tokens": 2, "cache_policy": "read_only"}


def _rest_kept(agent: str, path: str, **body: Any) -> Http:
    """A turn that ada's own agent of that name keeps, and whose Idempotency-Key bob's agent has had."""
    told = {"messages": {"messages": _json_messages(kept(agent))}, **body}
    headers = {"idempotency-key": f"{agent}s-turn"}
    return Http(f"/v1/agents/{agent}/{path}{_ON_MODEL}", _rest_new, told, headers, bobs=True)


def _on_agent(path: str = "", body: dict[str, Any] | None = None, *, bobs: bool = False) -> Http:
    """A request about bob's agent, which ada has none of."""
    return Http(f"{_REST}{path}{_ON_MODEL}", 404, body, bobs=bobs)


_AND_NOW = {"role": "user", "content": "And now?"}

ROUTES: dict[tuple[str, str], list[Http]] = {
    ("POST", "/v1/chat/completions"): [
        Http("/v1/chat/completions", _chatted, _chat("bobs-chat"), _named("bobs-chat"), bobs=True),
        # By content: the conversation that bob has had finds no agent of his.
        Http("/v1/chat/completions", _chatted, _chat("bobs-conversation"), bobs=True),
    ],
    ("POST", "/v1/completions"): [
        Http(
            "/v1/completions",
            _chatted,
            {"model": MODEL, "prompt": "About bobs-completion. " + SECRET * 17, "max_tokens": 2},
            _named("bobs-completion", "bobs-completed-turn"),
            bobs=True,
        ),
    ],
    # Before ada makes a response of the same id, which is hers then.
    ("GET", "/v1/responses/{id:path}"): [
        Http(f"/v1/responses/{RESPONSE}", 404, bobs=True),
        Http(f"/v1/responses/{RESPONSE}/input_items", 404, bobs=True),
    ],
    ("DELETE", "/v1/responses/{id:path}"): [Http(f"/v1/responses/{RESPONSE}", 404)],
    ("POST", "/v1/responses"): [
        Http(
            "/v1/responses",
            404,
            {"model": MODEL, "input": "And now?", "previous_response_id": RESPONSE, "max_output_tokens": 2},
            bobs=True,
        ),
        Http(
            "/v1/responses",
            404,
            {
                "model": MODEL,
                "input": [{"type": "item_reference", "id": RESPONSE.replace("resp_", "msg_") + "_0"}, _AND_NOW],
                "max_output_tokens": 2,
            },
            bobs=True,
        ),
        # The same Idempotency-Key makes the same id, and not the same turn.
        Http(
            "/v1/responses",
            lambda got: _responded(got) and got.json()["id"] == RESPONSE,
            _response("bobs-response"),
            {"idempotency-key": "bobs-response"},
            bobs=True,
        ),
    ],
    ("POST", "/v1/messages"): [
        # By content, and as a retry of bob's turn, which is not replayed.
        Http("/v1/messages", _messaged, _claude("bobs-talk"), {"idempotency-key": "bobs-told-turn"}, bobs=True),
    ],
    ("POST", "/v1/messages/count_tokens"): [
        # It counts what it is given, whoever has it in memory.
        Http(
            "/v1/messages/count_tokens",
            lambda got: got.json() == {"input_tokens": 14},
            {"model": MODEL, "messages": [{"role": "user", "content": "And now?"}]},
            _named(AGENT),
        ),
    ],
    # The model that all share; but not where it is on the server's disk.
    ("GET", "/v1/cluster"): [Http("/v1/cluster", 403)],
    ("GET", "/v1/overview"): [Http("/v1/overview", 403)],
    ("GET", "/v1/overview/history"): [Http("/v1/overview/history", 403)],
    ("GET", "/v1/models"): [Http("/v1/models", lambda got: _shared(*got.json()["data"]))],
    ("GET", "/v1/models/{id:path}"): [Http(f"/v1/models/{MODEL}", lambda got: _shared(got.json()))],
    ("GET", "/v1/model-registry"): [
        Http(
            "/v1/model-registry",
            lambda got: [(m["model_id"], m["source"]) for m in got.json()["models"]] == [(MODEL, "")],
        )
    ],
    ("GET", "/v1/model-registry/{model}"): [
        Http(f"/v1/model-registry/{MODEL}", lambda got: got.json()["model"]["source"] == "")
    ],
    ("POST", "/v1/model-registry/{model}/load"): [Http(f"/v1/model-registry/{MODEL}/load", 403, {})],
    ("POST", "/v1/model-registry/{model}/unload"): [Http(f"/v1/model-registry/{MODEL}/unload", 403, {})],
    ("POST", "/v1/model-registry/{model}/pull"): [Http(f"/v1/model-registry/{MODEL}/pull", 403, {})],
    ("GET", "/v1/hub/models"): [Http("/v1/hub/models", 403)],
    ("GET", "/v1/workflows"): [Http("/v1/workflows", lambda got: not _bobs_run(got))],
    ("POST", "/v1/workflows"): [
        # A run of ada's own, although bob's was asked for in the same words.
        Http(
            "/v1/workflows",
            lambda got: not _bobs_run(got),
            {"definition_yaml": WORKFLOW},
            {"idempotency-key": "bobs-run"},
        ),
    ],
    ("POST", "/v1/workflows/check"): [
        Http("/v1/workflows/check", lambda got: got.json()["name"] == "talk", {"definition_yaml": WORKFLOW})
    ],
    ("GET", "/v1/workflows/{workflow}"): [Http(f"/v1/workflows/{BOBS_RUN}", 404)],
    ("DELETE", "/v1/workflows/{workflow}"): [Http(f"/v1/workflows/{BOBS_RUN}", 404)],
    ("GET", "/v1/workflows/{workflow}/events"): [Http(f"/v1/workflows/{BOBS_RUN}/events", 404)],
    ("POST", "/v1/workflows/{workflow}/resume"): [Http(f"/v1/workflows/{BOBS_RUN}/resume", 404, {})],
    ("POST", "/v1/workflows/{workflow}/cancel"): [Http(f"/v1/workflows/{BOBS_RUN}/cancel", 404, {})],
    ("GET", "/v1/agents"): [
        Http("/v1/agents?page_size=1000", lambda got: AGENT not in _agents(got), bobs=True),
        Http(f"/v1/agents?agent={AGENT}", lambda got: not _agents(got), bobs=True),
        Http("/v1/agents?namespace=bob", 400),
    ],
    ("GET", "/v1/agents/{agent}"): [_on_agent(bobs=True)],
    ("DELETE", "/v1/agents/{agent}"): [
        Http(f"{_REST}{_ON_MODEL}", 404, repeated=True),
        Http(f"{_REST}?all_models=true", 404, repeated=True),
        Http(f"{_REST}?all_models=true&allow_missing=true", lambda got: got.json()["deleted"] == 0),
    ],
    ("POST", "/v1/agents/{agent}/generate"): [
        Http(f"{_REST}/generate{_ON_MODEL}", _rest_new, _READ_ONLY, {"idempotency-key": TURN}, bobs=True),
        _rest_kept("bobs-rest", "generate", max_tokens=2),
    ],
    ("POST", "/v1/agents/{agent}/prefill"): [_rest_kept("bobs-rest-prefill", "prefill")],
    ("POST", "/v1/agents/{agent}/fork"): [_on_agent("/fork", {"new_agent_id": "adas-fork"})],
    ("POST", "/v1/agents/{agent}/trim"): [_on_agent("/trim", {"keep_tokens": 1})],
    ("POST", "/v1/agents/{agent}/probe"): [
        Http(f"{_REST}/probe{_ON_MODEL}", _rest_new, _MESSAGES, bobs=True),
    ],
    ("POST", "/v1/agents/{agent}/prefetch"): [_on_agent("/prefetch", {}, bobs=True)],
    ("POST", "/v1/agents/{agent}/evict"): [_on_agent("/evict", {"tier": "warm"}), _on_agent("/evict", {"tier": "hot"})],
    ("PUT", "/v1/agents/{agent}/pin"): [_on_agent("/pin", {"pinned": True})],
    ("PUT", "/v1/agents/{agent}/ttl"): [_on_agent("/ttl", {"delete_after": 1})],
    ("PUT", "/v1/agents/{agent}/context-policy"): [_on_agent("/context-policy", {"context_policy": "refuse"})],
    ("GET", "/v1/agents/{agent}/turns"): [_on_agent("/turns", bobs=True)],
    ("GET", "/v1/agents/{agent}/blocks"): [_on_agent("/blocks", bobs=True)],
    ("GET", "/v1/agents/{agent}/snapshots"): [_on_agent("/snapshots", bobs=True)],
    ("POST", "/v1/agents/{agent}/snapshots"): [_on_agent("/snapshots", {"name": "adas"})],
    ("POST", "/v1/agents/{agent}/snapshots/{name}/restore"): [_on_agent(f"/snapshots/{SNAPSHOT}/restore", {})],
    ("DELETE", "/v1/agents/{agent}/snapshots/{name}"): [_on_agent(f"/snapshots/{SNAPSHOT}")],
    ("GET", "/v1/agents/{agent}/export"): [_on_agent("/export", bobs=True)],
    ("POST", "/v1/agents/{agent}/import"): [
        Http(f"{_REST}/import{_ON_MODEL}", 403, headers={"content-type": "application/octet-stream"}, content=EXPORTED),
    ],
    ("PUT", "/v1/turn-hints"): [
        Http("/v1/turn-hints", 200, {"hints": [{"key": {"agent_id": AGENT, "model_id": MODEL}}]}),
        Http("/v1/turn-hints", 400, {"hints": [{"key": {"namespace": "bob", "agent_id": AGENT, "model_id": MODEL}}]}),
    ],
    ("POST", "/v1/generations/abort"): [
        Http("/v1/generations/abort", lambda got: got.json() == {"aborted": False}, {"request_id": "bobs-running-turn"})
    ],
    ("GET", "/openapi.json"): [Http("/openapi.json", lambda got: "bobs-" not in got.text)],
    # The page's files, in which there is nothing of anybody; what it shows it asks the other routes for.
    ("GET", "/ui"): [Http("/ui", 308, open=True)],
    ("GET", "/health"): [Http("/health", 200, open=True)],
    ("GET", "/"): [Http("/", 200, open=True)],
    ("GET", "/ui/{file:path}"): [Http("/ui/", 200, open=True), Http("/ui/bob", 404, open=True)],
    ("GET", "/healthz"): [Http("/healthz", 200, open=True)],
    ("GET", "/readyz"): [Http("/readyz", 200, open=True)],
    ("GET", "/metrics"): [Http("/metrics", lambda got: "bob" not in got.text)],
}
