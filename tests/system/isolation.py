"""The table of every RPC: what a caller of one namespace may see of another's. isolation_routes.py has the routes.

Each entry is a call that ada makes, of things that only bob has. Whoever adds an RPC adds its entries here:
tests/system/test_isolation.py compares the table with the descriptors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from agentmem.conversations import chain_of
from agentmem.v1 import agent_pb2, inference_pb2, model_pb2, types_pb2, workflow_pb2
from tests.system.client import chat

MODEL = "demo"
SECRET = "The colour of the boat is purple. The key is in the cellar. "
AGENT, TURN, SNAPSHOT, LABEL = "bobs-agent", "bobs-turn", "bobs-snapshot", "bobs-label"
KEPT: dict[str, types_pb2.Messages] = {}
"""Bob's other prompts, by his agents' names."""


def prompt(about: str) -> types_pb2.Messages:
    """Return a prompt of more than a block, for bob, and word for word for ada; no two begin alike."""
    return chat(("system", f"About {about}. " + SECRET * 17), ("user", "What is the colour of the boat?"))


def kept(agent: str) -> types_pb2.Messages:
    """A prompt for one entry that keeps its turn, so that no other entry finds it in ada's own memory."""
    KEPT[agent] = prompt(agent)
    return KEPT[agent]


PROMPT = prompt(AGENT)
"""For the entries that keep nothing."""

Says = Callable[[Sequence[Any]], object]


@dataclass(frozen=True)
class Rpc:
    """A call. `ask` makes the request (or the messages of a stream) of the namespace that it names.

    Where it names none the answer must be `says`: a status, or true of all messages that came. Where it names bob's it
    must be PERMISSION_DENIED, unless `names_none`: the request has no field for it.
    """

    ask: Callable[[str], Message | list[Message]]
    says: grpc.StatusCode | Says
    names_none: bool = False


NOT_FOUND = grpc.StatusCode.NOT_FOUND
DENIED = grpc.StatusCode.PERMISSION_DENIED


def key(namespace: str, agent: str = AGENT) -> types_pb2.AgentKey:
    return types_pb2.AgentKey(namespace=namespace, agent_id=agent, model_id=MODEL)


def nothing_cached(report: types_pb2.CacheReport) -> bool:
    """A memory that was never there."""
    return report.match == types_pb2.MATCH_NEW and not report.cached and report.load_bytes == 0


def _generated(events: Sequence[inference_pb2.GenerateResponse]) -> bool:
    return nothing_cached(events[0].started.cache) and not events[-1].finished.usage.cached


def _prefilled(answers: Sequence[inference_pb2.PrefillResponse]) -> bool:
    return nothing_cached(answers[0].started.cache) and answers[0].finished.version.version == 1


def _on_agent(request: type[Message], says: grpc.StatusCode | Says = NOT_FOUND, **fields: Any) -> Rpc:
    return Rpc(lambda namespace: request(key=key(namespace), **fields), says)  # type: ignore[call-arg]


def _asked(request: type[Message], says: grpc.StatusCode | Says, **fields: Any) -> Rpc:
    return Rpc(lambda namespace: request(namespace=namespace, **fields), says)  # type: ignore[call-arg]


def _of_all(asked: Message, says: grpc.StatusCode | Says) -> Rpc:
    return Rpc(lambda _: asked, says, names_none=True)


def _imported(namespace: str) -> list[Message]:
    # The rest of bob's file does not matter: its key is refused, or its header is.
    return [
        agent_pb2.ImportAgentRequest(key=key(namespace)),
        *(agent_pb2.ImportAgentRequest(chunk=chunk) for chunk in EXPORTED),
    ]


EXPORTED: list[bytes] = []
"""Bob's agent as a file, for who tries to import over it. Set when it was exported."""

WORKFLOW = """
workflow: talk
agents: {one: {system: "You are one."}, two: {}}
phases: [{name: only, agents: [one, two], prompts: "What is the colour of the boat?", max_tokens: 3}]
"""
WORKFLOW_IDS: list[str] = []
"""Bob's run, for who tries to get at it. Set when it has ended."""


def run_workflow(namespace: str) -> workflow_pb2.RunWorkflowRequest:
    """Bob's run, and ada's of the same name."""
    return workflow_pb2.RunWorkflowRequest(namespace=namespace, request_id="bobs-run", definition_yaml=WORKFLOW)


def _ran(events: Sequence[workflow_pb2.RunWorkflowResponse]) -> bool:
    """A run that was computed from its beginning."""
    spoken = [event.agent_spoke for event in events if event.HasField("agent_spoke")]
    return len(spoken) == 2 and not any(each.replayed for each in spoken)


READ_ONLY: dict[str, Any] = {"messages": PROMPT, "max_tokens": 2, "cache_policy": inference_pb2.CACHE_POLICY_READ_ONLY}

_PREFILLED = kept("bobs-prefill")

_INFERENCE = "agentmem.v1.InferenceService"
_AGENTS = "agentmem.v1.AgentService"
_MODELS = "agentmem.v1.ModelService"
_WORKFLOWS = "agentmem.v1.WorkflowService"

RPCS: dict[str, list[Rpc]] = {
    f"{_INFERENCE}/Generate": [
        _on_agent(inference_pb2.GenerateRequest, _generated, **READ_ONLY),
        # A retry of bob's turn is not replayed.
        _on_agent(inference_pb2.GenerateRequest, _generated, request_id=TURN, **READ_ONLY),
    ],
    f"{_INFERENCE}/Prefill": [
        Rpc(
            lambda ns: inference_pb2.PrefillRequest(key=key(ns, "bobs-prefill"), messages=_PREFILLED),
            _prefilled,
        )
    ],
    f"{_INFERENCE}/CountTokens": [
        # As many as for an agent that nobody has.
        _on_agent(
            inference_pb2.CountTokensRequest,
            lambda answers: answers[0].tokens == 14,
            append=types_pb2.Append(messages=chat(("user", "And now?"))),
        )
    ],
    f"{_INFERENCE}/Abort": [
        _asked(inference_pb2.AbortRequest, lambda answers: not answers[0].aborted, request_id="bobs-running-turn")
    ],
    f"{_AGENTS}/GetAgent": [_on_agent(agent_pb2.GetAgentRequest)],
    f"{_AGENTS}/ListAgents": [
        _asked(
            agent_pb2.ListAgentsRequest,
            lambda pages: "bob" not in {agent.key.namespace for page in pages for agent in page.agents},
            page_size=1000,
        ),
        _asked(agent_pb2.ListAgentsRequest, lambda pages: not any(page.agents for page in pages), agent_id=AGENT),
    ],
    f"{_AGENTS}/ListTurns": [_on_agent(agent_pb2.ListTurnsRequest, include_text=True)],
    f"{_AGENTS}/ListBlocks": [_on_agent(agent_pb2.ListBlocksRequest)],
    f"{_AGENTS}/FindAgent": [
        _asked(agent_pb2.FindAgentRequest, lambda answers: not answers[0].HasField("agent"), model_id=MODEL, **sought)
        for sought in (
            {"message_hashes": chain_of(PROMPT)},
            {"message_hashes": chain_of(PROMPT), "label": LABEL},
            {"request_id": TURN},
        )
    ],
    f"{_AGENTS}/DeleteAgent": [
        _on_agent(agent_pb2.DeleteAgentRequest),
        _on_agent(agent_pb2.DeleteAgentRequest, lambda answers: answers[0].deleted == 0, allow_missing=True),
    ],
    f"{_AGENTS}/TrimAgent": [_on_agent(agent_pb2.TrimAgentRequest, keep_tokens=1)],
    f"{_AGENTS}/ProbeAgent": [
        _on_agent(agent_pb2.ProbeAgentRequest, lambda answers: nothing_cached(answers[0].cache), messages=PROMPT)
    ],
    f"{_AGENTS}/ForkAgent": [_on_agent(agent_pb2.ForkAgentRequest, new_agent_id="adas-fork")],
    f"{_AGENTS}/CreateSnapshot": [_on_agent(agent_pb2.CreateSnapshotRequest, name="adas")],
    f"{_AGENTS}/ListSnapshots": [_on_agent(agent_pb2.ListSnapshotsRequest)],
    f"{_AGENTS}/RestoreSnapshot": [_on_agent(agent_pb2.RestoreSnapshotRequest, name=SNAPSHOT)],
    f"{_AGENTS}/DeleteSnapshot": [_on_agent(agent_pb2.DeleteSnapshotRequest, name=SNAPSHOT)],
    f"{_AGENTS}/PinAgent": [_on_agent(agent_pb2.PinAgentRequest, pinned=True)],
    f"{_AGENTS}/SetAgentTtl": [_on_agent(agent_pb2.SetAgentTtlRequest, delete_after={"seconds": 1})],
    f"{_AGENTS}/SetContextPolicy": [_on_agent(agent_pb2.SetContextPolicyRequest, context_policy=2)],
    f"{_AGENTS}/SetTurnHints": [
        Rpc(
            lambda ns: agent_pb2.SetTurnHintsRequest(
                hints=[agent_pb2.TurnHint(key=key("", "adas")), agent_pb2.TurnHint(key=key(ns))]
            ),
            lambda answers: len(answers) == 1,
        )
    ],
    f"{_AGENTS}/PrefetchAgent": [_on_agent(agent_pb2.PrefetchAgentRequest)],
    f"{_AGENTS}/EvictAgent": [_on_agent(agent_pb2.EvictAgentRequest, tier=types_pb2.TIER_WARM)],
    f"{_AGENTS}/ExportAgent": [_on_agent(agent_pb2.ExportAgentRequest)],
    f"{_AGENTS}/ImportAgent": [Rpc(_imported, DENIED)],
    f"{_MODELS}/ListModels": [
        _of_all(model_pb2.ListModelsRequest(), lambda pages: pages[0].models and not pages[0].models[0].source)
    ],
    f"{_MODELS}/GetModel": [
        _of_all(
            model_pb2.GetModelRequest(),
            lambda answers: (answers[0].model.model_id, answers[0].model.source) == (MODEL, ""),
        )
    ],
    f"{_MODELS}/LoadModel": [_of_all(model_pb2.LoadModelRequest(model_id=MODEL), DENIED)],
    f"{_MODELS}/UnloadModel": [_of_all(model_pb2.UnloadModelRequest(model_id=MODEL), DENIED)],
    f"{_MODELS}/SearchModels": [_of_all(model_pb2.SearchModelsRequest(), DENIED)],
    f"{_MODELS}/PullModel": [_of_all(model_pb2.PullModelRequest(model_id=MODEL), DENIED)],
    f"{_WORKFLOWS}/RunWorkflow": [
        Rpc(run_workflow, lambda events: _ran(events) and events[0].started.workflow.workflow_id not in WORKFLOW_IDS),
        Rpc(
            lambda ns: workflow_pb2.RunWorkflowRequest(namespace=ns, resume_workflow_id=WORKFLOW_IDS[0]),
            NOT_FOUND,
        ),
        Rpc(
            lambda ns: workflow_pb2.RunWorkflowRequest(namespace=ns, watch_workflow_id=WORKFLOW_IDS[0]),
            NOT_FOUND,
        ),
    ],
    f"{_WORKFLOWS}/CheckWorkflow": [
        _of_all(workflow_pb2.CheckWorkflowRequest(definition_yaml=WORKFLOW), lambda answers: answers[0].name == "talk")
    ],
    f"{_WORKFLOWS}/ListWorkflows": [
        _asked(
            workflow_pb2.ListWorkflowsRequest,
            lambda answers: all(run.workflow_id not in WORKFLOW_IDS for run in answers[0].workflows),
        )
    ],
    **{
        f"{_WORKFLOWS}/{name}": [
            Rpc(
                lambda ns, name=name: getattr(workflow_pb2, f"{name}Request")(  # type: ignore[misc]
                    namespace=ns, workflow_id=WORKFLOW_IDS[0]
                ),
                NOT_FOUND,
            )
        ]
        for name in ("GetWorkflow", "CancelWorkflow", "DeleteWorkflow")
    },
}
