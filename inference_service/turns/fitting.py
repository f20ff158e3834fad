"""What is done where a memory and what is appended to it outgrow the context; see `memory.trimming`."""

from agentmem.v1 import types_pb2
from inference_service.domain import AppendInput, MessagesInput, TurnRequest
from inference_service.memory.ledger import Ledger
from inference_service.memory.match import common_length
from inference_service.memory.plan import Plan, Planner
from inference_service.memory.trimming import bounds, room_for_answer, room_for_summary
from inference_service.models.loading import LoadedModel
from inference_service.turns.planned import REFUSE, SUMMARIZE, Policy


def fitted(
    planner: Planner,
    ledger: Ledger,
    plan: Plan,
    context_length: int,
    max_tokens: int,
    policy: Policy,
    note: bytes = b"",
) -> Plan:
    """The plan of an append, trimmed if it leaves too little room for an answer of `max_tokens` (0 for none).

    It is as it was where the policy says so, or nothing can be dropped that would do.
    """
    answer = room_for_answer(context_length, max_tokens) if max_tokens else 0
    if policy == REFUSE or not len(ledger) or len(plan.sequence) + answer <= context_length:
        return plan
    summary = room_for_summary(context_length) if policy == SUMMARIZE else 0
    return planner.trimmed(ledger, plan, bounds(context_length, answer, summary), note) or plan


def shared_tokens(ledger: Ledger, plan: Plan) -> int:
    """How many of the ledger's tokens stay in the commit. What a trim carries along is written again, as turns."""
    return plan.keep_tokens if plan.trim is not None else common_length(ledger.token_ids, plan.sequence)


def opening_bytes(request: TurnRequest, model: LoadedModel, ledger: Ledger, plan: Plan, *, appended: bool) -> int:
    """The opening of the ledger that the turn makes: the ledger's own, unless the turn begins it anew."""
    if plan.trim is not None:
        return plan.trim.opening_bytes
    kept = ledger.offsets[plan.keep_tokens - 1] if plan.keep_tokens else 0
    known = ledger.opening_bytes if ledger.opening_bytes <= kept else 0
    if appended and len(ledger):
        return ledger.opening_bytes
    if known and plan.kind in (types_pb2.MATCH_EXACT, types_pb2.MATCH_EXTEND):
        return known
    chat = request.input.content if isinstance(request.input, AppendInput) else request.input
    if not isinstance(chat, MessagesInput) or not request.commits:
        return known
    # Where templates begin with words of their own, another system prompt leaves the opening that was, and is one.
    opening = model.renderer.opening(chat, parse_special=request.parse_special)
    return len(opening) if opening and model.tokenizer.decode(plan.sequence).startswith(opening) else known


def refusal(tokens: int, context_length: int, policy: Policy, *, appended: bool, known: bool) -> str:
    """Why a prompt of so many tokens is refused, and what to do. `known`: the agent has a memory."""
    if not appended:
        advice = "shorten it; or append only what is new to an agent, whose oldest turns can then make room"
    elif known and policy == REFUSE:
        advice = "set the agent's context policy to trim or summarize, trim it, or start a new agent"
    else:
        advice = "append less: it does not fit even behind the system prompt alone"
    return f"the prompt has {tokens} tokens and the model's context holds {context_length}; {advice}"
