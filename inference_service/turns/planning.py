"""Plans a turn in tokens, within the context, and finds the KV that would serve."""

import logging
from dataclasses import dataclass, replace

from agentmem.errors import Aborted, AgentmemError, ContextExceeded, FailedPrecondition
from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.kv.ledger import NO_VERSION, Ledger, common_length, other_revision
from agentmem.process import logs
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.validation import AgentKey
from inference_service.domain import AppendInput, MessagesInput, TurnInput, TurnRequest
from inference_service.memory.checkpoints import capture_positions
from inference_service.memory.match import MatchLimits
from inference_service.memory.plan import Plan, Planner
from inference_service.memory.retokenizing import retokenized
from inference_service.memory.trimming import bounds, room_for_answer, room_for_summary
from inference_service.models.loaded import LoadedModel
from inference_service.models.opening import ModelInfo
from inference_service.storage.client import Opened, StoreClient
from inference_service.text import template
from inference_service.threads import WorkerThreads
from inference_service.turns.decoding import decoding_of
from inference_service.turns.inputs import InputPlanner
from inference_service.turns.restoring import kv_lookup
from inference_service.turns.turn import NO_NOTE, REFUSE, SUMMARIZE, TRIM, Note, Turn

log = logging.getLogger(__name__)


async def opened(
    store: StoreClient, model: LoadedModel, key: AgentKey, request_id: str = "", *, peek: bool = False
) -> Opened:
    """Return the store's state of an agent, or hot state's ledger if that is current; outdated hot state goes, unless
    this peeks or the request was committed. Event loop; under the agent's lock, or peeking.
    """
    hot = model.memory.hot.get(key)
    found = await store.open(key, hot.version if hot is not None else NO_VERSION, request_id, peek=peek)
    if hot is not None and found.version == hot.version:
        return replace(found, ledger=hot.ledger)
    if not peek and found.turn is None:
        model.memory.hot.present(key, found.version)
    return found


@dataclass(eq=False, repr=False)
class TurnPlanner:
    """Raises the contract's errors before any side effect. Event loop; text on other threads."""

    store: StoreClient
    threads: WorkerThreads
    limits: MatchLimits
    default_max_tokens: int

    async def plan(self, turn: Turn, model: LoadedModel, opened: Opened, note: Note = NO_NOTE) -> None:
        """`note` replaces what the context has no room for."""
        request, version = turn.request, opened.version
        if request.if_version not in (None, version.number):
            raise Aborted(f"the agent is at version {version.number}, not {request.if_version}")
        if request.if_revision not in (b"", version.revision):
            raise Aborted(other_revision(version.number))
        ledger = opened.ledger or Ledger()
        moment = request.template_time or ledger.template_time or template.present_moment()
        with template.rendering_at(moment):
            turn.retokenized = bool(len(ledger)) and ledger.tokenizer_hash != model.tokenizer.hash
            if turn.retokenized:
                before = ledger
                ledger = await self.threads.plan(lambda: retokenized(before, model.tokenizer))
            turn.policy = opened.context_policy or request.context_policy or TRIM
            turn.base, turn.note = opened.version, note
            await self._plan_against(turn, model, replace(ledger, template_time=moment))
        turn.lookup = replace(turn.lookup, incompatible=turn.retokenized or opened.is_incompatible(model.fingerprint))

    async def _plan_against(self, turn: Turn, model: LoadedModel, ledger: Ledger) -> None:
        request = turn.request
        plan, appended = await self.threads.plan_input(request.input, lambda: self._fitted(turn, model, ledger))
        if turn.note.text and plan.trim is None:
            turn.note = Note(failure="the note does not fit")
            plan, appended = await self.threads.plan_input(request.input, lambda: self._fitted(turn, model, ledger))
        shared = _shared_tokens(ledger, plan)
        turn.dropped_tokens, turn.snapshot_version = len(ledger) - shared, 0
        if not (turn.retokenized or appended) and (snapshot := await self._snapshot(turn, model, ledger, plan)):
            turn.snapshot_version, ledger, plan = snapshot
        turn.ledger, turn.plan, turn.appended = ledger, plan, appended
        turn.keep_tokens = 0 if turn.retokenized else _shared_tokens(ledger, plan)
        turn.shared_tokens = 0 if turn.retokenized else shared
        turn.context_remaining = model.context_length - len(plan.sequence)
        await self.threads.plan_input(request.input, lambda: self._check_and_look_up(turn, model))
        turn.decoding = await decoding_of(request, model, plan.sequence, self._wanted(request), self.threads)

    def _fitted(self, turn: Turn, model: LoadedModel, ledger: Ledger) -> tuple[Plan, bool]:
        """Return the plan, trimmed if an append leaves no room to answer, and whether the input was appended."""
        request, planner = turn.request, self._planner(turn.request, model)
        plan, appended = self._inputs(request, model, ledger).plan_turn(request)
        if (largest := int(plan.sequence.max())) >= model.vocab_size:
            raise FailedPrecondition(
                f"the tokenizer makes token {largest} of the prompt, and the model has {model.vocab_size}"
            )
        if not appended or turn.policy == REFUSE or not len(ledger):
            return plan, appended
        context = model.context_length
        answer = room_for_answer(context, self._wanted(request)) if request.generates else 0
        if len(plan.sequence) + answer <= context:
            return plan, True
        summary = room_for_summary(context) if turn.policy == SUMMARIZE else 0
        return planner.trimmed(ledger, plan, bounds(context, answer, summary), turn.note.marked) or plan, True

    def _check_and_look_up(self, turn: Turn, model: LoadedModel) -> None:
        """Refuse the turn, or find KV. Planning thread."""
        request, plan, ledger = turn.request, turn.plan, turn.ledger
        if not turn.appended:
            self._inputs(request, model, ledger).check_kept(request, plan)
        limit = model.context_length - request.generates  # at least one token is the answer's
        if len(plan.sequence) > limit:
            raise ContextExceeded(_too_long(turn, model.context_length), len(plan.sequence), limit)
        checkpoints = capture_positions(plan.checkpoints, len(plan.sequence))
        turn.lookup = kv_lookup(request.key.namespace, model, ledger, plan.keep_tokens, plan.sequence, checkpoints)
        turn.opening_bytes = _opening_bytes(turn, model)

    async def count(self, turn_input: TurnInput, parse_special: bool, model: ModelInfo, ledger: Ledger) -> int:
        """Return an input's tokens; of an append those that it adds."""

        def counted() -> int:
            planner = Planner(model.tokenizer, model.renderer, self.limits)
            with template.rendering_at(ledger.template_time):
                options = {"parse_special": parse_special, "generation_prompt": True}
                plan = InputPlanner(planner, ledger, **options).plan(turn_input)
            return len(plan.sequence) - (len(ledger) if isinstance(turn_input, AppendInput) else 0)

        return await self.threads.plan_input(turn_input, counted)

    def _inputs(self, request: TurnRequest, model: LoadedModel, ledger: Ledger) -> InputPlanner:
        options = {"parse_special": request.parse_special, "generation_prompt": request.generates}
        return InputPlanner(self._planner(request, model), ledger, **options)

    def _planner(self, request: TurnRequest, model: LoadedModel) -> Planner:
        """Continue a memory as it is if that leaves room for the answer."""
        most = model.context_length - room_for_answer(model.context_length, self._wanted(request))
        return Planner(model.tokenizer, model.renderer, self.limits._replace(most_tokens=most))

    def _wanted(self, request: TurnRequest) -> int:
        return request.max_tokens or self.default_max_tokens

    async def _snapshot(
        self, turn: Turn, model: LoadedModel, ledger: Ledger, plan: Plan
    ) -> tuple[int, Ledger, Plan] | None:
        """Return the snapshot that the prompt continues further than the present ledger: an agent may edit a message
        and then return.
        """
        request = turn.request
        leaves = plan.kind in (types_pb2.MATCH_PARTIAL, types_pb2.MATCH_DIVERGE)
        if not len(ledger) or request.memory_mode == inference_pb2.MEMORY_MODE_REFUSE:
            return None
        if not leaves and len(plan.sequence) - plan.keep_tokens < BLOCK_TOKENS:
            return None

        def compared() -> tuple[bytes, int]:
            text = model.tokenizer.decode(plan.sequence)
            return text, ledger.tokens_within(common_length(ledger.text, text))

        text, common = await self.threads.plan(compared)
        try:
            found = await self.store.find_snapshot(request.key, turn.base, text, common, model.tokenizer.hash)
        except AgentmemError as error:
            logs.event(log, "snapshots could not be searched", logging.WARNING, error=error.message)
            return None
        if found is None:
            return None
        version, branch = found
        branch = replace(branch, template_time=ledger.template_time)
        inputs = self._inputs(request, model, branch)
        continued = await self.threads.plan_input(request.input, lambda: inputs.plan(request.input))
        return (version, branch, continued) if continued.keep_tokens > plan.keep_tokens else None


def _shared_tokens(ledger: Ledger, plan: Plan) -> int:
    """Return how many of the ledger's tokens stay in the commit. A trim writes what it carries again."""
    return plan.keep_tokens if plan.trim is not None else common_length(ledger.token_ids, plan.sequence)


def _opening_bytes(turn: Turn, model: LoadedModel) -> int:
    request, plan, ledger = turn.request, turn.plan, turn.ledger
    if plan.trim is not None:
        return plan.trim.opening_bytes
    known = ledger.opening_bytes if ledger.opening_bytes <= ledger.text_end(plan.keep_tokens) else 0
    if turn.appended and len(ledger):
        return ledger.opening_bytes
    if known and plan.kind in (types_pb2.MATCH_EXACT, types_pb2.MATCH_EXTEND):
        return known
    chat = request.input.content if isinstance(request.input, AppendInput) else request.input
    if not isinstance(chat, MessagesInput) or not request.commits:
        return known
    # Where templates begin with words of their own, another system prompt leaves the old opening, and is one.
    opening = model.renderer.opening(chat, parse_special=request.parse_special)
    begins = bool(opening) and model.tokenizer.decode(plan.sequence).startswith(opening)
    return len(opening) if begins else known


def _too_long(turn: Turn, context_length: int) -> str:
    if not turn.appended:
        advice = "shorten it; or append only what is new to an agent, whose oldest turns can then make room"
    elif len(turn.ledger) and turn.policy == REFUSE:
        advice = "set the agent's context policy to trim or summarize, trim it, or start a new agent"
    else:
        advice = "append less: it does not fit even behind the system prompt alone"
    return f"the prompt has {len(turn.plan.sequence)} tokens and the model's context holds {context_length}; {advice}"
