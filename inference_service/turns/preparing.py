"""What a turn needs before the engine takes it up: the plan against the ledger, the bounds, the KV to start from."""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Protocol

from agentmem import logs
from agentmem.blockfile import BLOCK_TOKENS
from agentmem.errors import Aborted, AgentmemError, FailedPrecondition, InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from inference_service.domain import AppendInput, MessagesInput, TokensInput, TurnInput, TurnRequest
from inference_service.engine.generation import Decoding
from inference_service.memory.ledger import Ledger, Version
from inference_service.memory.match import Limits, common_length
from inference_service.memory.plan import Plan, Planner
from inference_service.memory.restore import Lookup, look_up
from inference_service.memory.retokenizing import retokenized
from inference_service.memory.trimming import room_for_answer
from inference_service.memory.windows import WindowCandidate, capture_positions, window_candidates
from inference_service.models.loading import LoadedModel
from inference_service.pool.admission import Room
from inference_service.storage.client import Opened, StoreClient
from inference_service.text import template_clock
from inference_service.text.grammar import Grammar
from inference_service.text.reasoning import ReasoningSplit
from inference_service.text.rendering import Renderer
from inference_service.text.thinking_grammar import Thinking, thinking
from inference_service.text.tokenizer import Tokenizer
from inference_service.turns.fitting import fitted, opening_bytes, refusal, shared_tokens
from inference_service.turns.inputs import check_kept, plan_input, plan_turn
from inference_service.turns.planned import NO_NOTE, Note, Planned, Policy, Prepared, Reuse
from inference_service.turns.planning_threads import PlanningThreads
from inference_service.turns.restoring import Restorer

log = logging.getLogger(__name__)


class TextModel(Protocol):
    """What of a model has to do with text; it need not be loaded."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""

    @property
    def renderer(self) -> Renderer:
        """Renders its inputs."""

    @property
    def vocab_size(self) -> int:
        """How many logits it has."""


class Preparer:
    """Prepares turns. Raises the contract's errors, before any side effect."""

    def __init__(self, restorer: Restorer, store: StoreClient, limits: Limits, default_max_tokens: int) -> None:
        self._restorer = restorer
        self._store = store
        self._limits = limits
        self._default_max_tokens = default_max_tokens
        self._threads = PlanningThreads()
        # One at a time, on a thread of their own: hostile schemas take time, and only from each other.
        self._compiling = ThreadPoolExecutor(1, "grammar")

    async def plan(
        self, request: TurnRequest, model: LoadedModel, opened: Opened, known: Ledger | None, note: Note = NO_NOTE
    ) -> Planned:
        """Plan the turn against what the store has; `known` is the ledger, where the store did not send it again.

        `note` takes the place of what has to go for the turn to fit the context.
        """
        if request.if_version is not None and request.if_version != opened.version.number:
            raise Aborted(f"the agent is at version {opened.version.number}, not {request.if_version}")
        ledger = opened.ledger or known or Ledger()
        moment = request.template_time or ledger.template_time or template_clock.present()
        with template_clock.at(moment):
            return await self._plan_at(moment, request, model, opened, ledger, note)

    async def _plan_at(
        self, moment: str, request: TurnRequest, model: LoadedModel, opened: Opened, ledger: Ledger, note: Note
    ) -> Planned:
        tokenizer_changed = bool(len(ledger)) and ledger.tokenizer_hash != model.tokenizer.hash
        if tokenizer_changed:
            ledger = await asyncio.to_thread(retokenized, ledger, model.tokenizer)
        policy = opened.context_policy or request.context_policy or types_pb2.CONTEXT_POLICY_TRIM
        plan, appended = await self._threads.run(
            request.input, lambda: self._fitted(request, model, ledger, policy, note)
        )
        if note.text and plan.trim is None:
            return await self._plan_at(moment, request, model, opened, ledger, Note(failure="the note does not fit"))
        shared = shared_tokens(ledger, plan)
        dropped, snapshot_version = len(ledger) - shared, 0
        if not (tokenizer_changed or appended) and (
            snapshot := await self._snapshot(request, model, opened.version, ledger, plan)
        ):
            snapshot_version, ledger, plan = snapshot
        if not appended:
            await self._threads.run(request.input, lambda: check_kept(model.renderer, request, ledger, plan))
        remaining = model.context_length - len(plan.sequence)
        if remaining < (1 if request.generates else 0):
            size = len(plan.sequence), model.context_length
            raise FailedPrecondition(refusal(*size, policy, appended=appended, known=bool(len(ledger))))
        lookup, windows = await asyncio.to_thread(_look_up, request, model, ledger, plan)
        grammar = await self._grammar(request, model, plan.sequence)
        return Planned(
            base=opened.version,
            ledger=replace(ledger, template_time=moment),
            snapshot_version=snapshot_version,
            keep_tokens=0 if tokenizer_changed else shared_tokens(ledger, plan),
            shared_tokens=0 if tokenizer_changed else shared,
            dropped_tokens=dropped,
            retokenized=tokenizer_changed,
            incompatible=tokenizer_changed or opened.is_incompatible(model.fingerprint),
            plan=plan,
            appended=appended,
            lookup=lookup,
            windows=windows,
            decoding=self._decoding(request, model, plan, remaining, grammar) if request.generates else None,
            context_remaining=remaining,
            opening_bytes=await asyncio.to_thread(opening_bytes, request, model, ledger, plan, appended=appended),
            policy=policy,
            note=note,
        )

    async def prepare(self, request: TurnRequest, model: LoadedModel, planned: Planned, room: Room) -> Prepared:
        """Find the KV to start from; what of it is in the pool is held by the room."""
        if request.cache_policy == inference_pb2.CACHE_POLICY_RECOMPUTE:
            reuse = Reuse(model.new_caches)
        elif planned.retokenized:
            reuse = _no_reuse(model)
        else:
            reuse = await self._restorer.find(request.key, model, planned, room)
        return Prepared(**vars(planned), reuse=reuse)

    async def probe(self, request: TurnRequest, model: LoadedModel, opened: Opened, known: Ledger | None) -> Prepared:
        """What a turn would reuse, without any effect."""
        planned = await self.plan(request, model, opened, known)
        if planned.retokenized:
            return Prepared(**vars(planned), reuse=_no_reuse(model))
        return Prepared(**vars(planned), reuse=await self._restorer.probe(request.key, model, planned))

    async def tokens(self, turn_input: TurnInput, parse_special: bool, model: TextModel, ledger: Ledger) -> int:
        """How many tokens an input has; for an append, how many it adds to the ledger."""

        def count() -> int:
            planner = Planner(model.tokenizer, model.renderer, self._limits)
            with template_clock.at(ledger.template_time):
                plan = plan_input(planner, model.renderer, turn_input, ledger, parse_special=parse_special, cue=True)
            return len(plan.sequence) - (len(ledger) if isinstance(turn_input, AppendInput) else 0)

        return await self._threads.run(turn_input, count)

    def _plan(self, request: TurnRequest, model: LoadedModel, ledger: Ledger) -> tuple[Plan, bool]:
        plan, appended = plan_turn(self._planner(request, model), model.renderer, request, ledger)
        if (largest := max(plan.sequence)) >= model.vocab_size:
            raise FailedPrecondition(
                f"the tokenizer makes token {largest} of the prompt, and the model has {model.vocab_size}"
            )
        return plan, appended

    def _fitted(
        self, request: TurnRequest, model: LoadedModel, ledger: Ledger, policy: Policy, note: Note
    ) -> tuple[Plan, bool]:
        plan, appended = self._plan(request, model, ledger)
        if not appended:
            return plan, False
        planner = self._planner(request, model)
        wanted = self._wanted(request) if request.generates else 0
        return fitted(planner, ledger, plan, model.context_length, wanted, policy, note.marked), True

    def _planner(self, request: TurnRequest, model: LoadedModel) -> Planner:
        """What plans the turn: a memory is gone on from as it is where that leaves room for the answer."""
        most = model.context_length - room_for_answer(model.context_length, self._wanted(request))
        return Planner(model.tokenizer, model.renderer, self._limits._replace(most_tokens=most))

    async def _snapshot(
        self, request: TurnRequest, model: LoadedModel, base: Version, ledger: Ledger, plan: Plan
    ) -> tuple[int, Ledger, Plan] | None:
        """The snapshot that the prompt continues, where it has more of it than of the present ledger.

        Its version, its ledger, and the plan against that. An agent that edits a message and then returns to what it
        had leaves the present state and not the prompt behind.
        """
        leaves = plan.kind in (types_pb2.MATCH_PARTIAL, types_pb2.MATCH_DIVERGE)
        if not len(ledger) or request.memory_mode == inference_pb2.MEMORY_MODE_REFUSE:
            return None
        if not leaves and len(plan.new_ids) < BLOCK_TOKENS:
            return None

        def compared() -> tuple[bytes, int]:
            text = model.tokenizer.decode(plan.sequence)
            return text, bisect_right(ledger.offsets, common_length(ledger.text, text))

        text, common = await asyncio.to_thread(compared)
        try:
            found = await self._store.find_snapshot(request.key, base, text, common, model.tokenizer.hash)
        except AgentmemError as error:
            logs.event(log, "snapshots could not be searched", logging.WARNING, error=error.message)
            return None
        if found is None:
            return None
        version, branch = found
        planner = self._planner(request, model)
        options = {"parse_special": request.parse_special, "cue": request.generates}
        continued = await self._threads.run(
            request.input, lambda: plan_input(planner, model.renderer, request.input, branch, **options)
        )
        return (version, branch, continued) if continued.keep_tokens > plan.keep_tokens else None

    async def _grammar(self, request: TurnRequest, model: LoadedModel, prompt: Sequence[int]) -> Grammar | None:
        if request.held is None and request.json_schema is None:
            return None
        thoughts = _thinking(request, model, prompt)
        if request.held is not None and model.call_syntax is not None:
            compiling = partial(model.grammars.compile_answer, request.held, model.call_syntax, thoughts)
        else:
            assert request.json_schema is not None  # calls are held where `check_tool_calls` has found a syntax
            compiling = partial(model.grammars.compile, request.json_schema, thinking=thoughts)
        return await asyncio.get_running_loop().run_in_executor(self._compiling, compiling)

    def _wanted(self, request: TurnRequest) -> int:
        return request.max_tokens or self._default_max_tokens

    def _decoding(
        self, request: TurnRequest, model: LoadedModel, plan: Plan, remaining: int, grammar: Grammar | None
    ) -> Decoding:
        wanted = self._wanted(request)
        return Decoding(
            max_tokens=min(wanted, remaining),
            reason_at_max=(types_pb2.FINISH_REASON_CONTEXT if wanted > remaining else types_pb2.FINISH_REASON_LENGTH),
            sampling=request.sampling,
            stop=request.stop,
            top_logprobs=request.top_logprobs,
            grammar=grammar,
            call_syntax=model.call_syntax if request.tool_calls else None,
            tools=request.tools,
            reasoning=_reasoning(request, model, plan.sequence),
            transient_stops=model.renderer.transient_stops,
        )


def _look_up(
    request: TurnRequest, model: LoadedModel, ledger: Ledger, plan: Plan
) -> tuple[Lookup, tuple[WindowCandidate, ...]]:
    """The KV that would serve a plan. Off the event loop: names of blocks are hashes of all tokens."""
    ids = model.fingerprint, request.key.namespace
    lookup = look_up(*ids, ledger.token_ids, plan.keep_tokens, plan.sequence)
    if model.geometry.sliding is None:
        return lookup, ()
    positions = capture_positions(plan.checkpoints, len(plan.sequence))
    return lookup, window_candidates(*ids, ledger, plan.keep_tokens, plan.sequence, positions)


def check_tokens(turn_input: TurnInput, model: TextModel, logit_bias: Iterable[int] = ()) -> None:
    """Refuse token ids that the model does not have: the backend would read and write out of bounds.

    And more of them than text may have (FailedPrecondition).
    """
    token_ids = turn_input.token_ids if isinstance(turn_input, TokensInput) else ()
    model.renderer.check_tokens(len(token_ids))
    if max(token_ids, default=0) < model.vocab_size:
        token_ids = ()  # There are many, and to name each takes long.
    named = [*((f"token_ids.ids[{i}]", token_id) for i, token_id in enumerate(token_ids))]
    named += [(f"sampling.logit_bias[{token_id}]", token_id) for token_id in logit_bias]
    for field, token_id in named:
        if token_id >= model.vocab_size:
            raise InvalidArgument(field, f"{token_id} is not below the vocabulary's {model.vocab_size}")


def check_tool_calls(request: TurnRequest, model: LoadedModel) -> None:
    """Refuse to tell calls of tools apart, or to hold them, where nothing says how the model writes them."""
    if not request.tool_calls:
        return
    if model.call_syntax is None:
        raise FailedPrecondition(
            f"model {model.model_id!r} has no tool parser, so calls of tools cannot be told from its text; "
            "take a model that has one (tool_parser in GetModel), or ask for no calls"
        )
    if request.held is not None and model.call_syntax.form is None:
        raise FailedPrecondition(
            f"model {model.model_id!r} writes calls as {model.call_syntax.name} does, and not as JSON, so they cannot "
            "be held to their tools: leave out strict, parallel_tool_calls=false, json_schema beside tools and any "
            "tool_choice but auto and none, or take a model whose tool_parser is json_tools, kimi_k2 or mistral"
        )


def _reasoning_state(request: TurnRequest, model: LoadedModel, prompt: Sequence[int]) -> str | None:
    """Where in its format the reasoning begins that the turn's answer has; None for raw text."""
    content = request.input.content if isinstance(request.input, AppendInput) else request.input
    if model.reasoning is None or not isinstance(content, MessagesInput):
        return None
    return model.reasoning.state_after_tokens(prompt, model.tokenizer)


def _thinking(request: TurnRequest, model: LoadedModel, prompt: Sequence[int]) -> Thinking | None:
    """What of its reasoning may come before an answer that is held to a grammar."""
    state = _reasoning_state(request, model, prompt)
    return thinking(model.reasoning, state, model.tokenizer) if model.reasoning and state else None


def _reasoning(request: TurnRequest, model: LoadedModel, prompt: Sequence[int]) -> ReasoningSplit | None:
    """What tells the turn's reasoning apart; None for raw text, and where a schema holds the first token already."""
    state = _reasoning_state(request, model, prompt)
    if model.reasoning is None or state is None:
        return None
    if request.json_schema is not None and _thinking(request, model, prompt) is None:
        return None
    return ReasoningSplit(model.reasoning, state)


def _no_reuse(model: LoadedModel) -> Reuse:
    """What another tokenizer's tokens came to is not even looked for, nor is it where some of them have stayed."""
    return Reuse(model.new_caches, types_pb2.MISS_REASON_INCOMPATIBLE)
