"""How an answer is generated and held, and refusals of what a model cannot do."""

from collections.abc import Iterable
from functools import partial

import numpy as np

from agentmem.errors import FailedPrecondition, InvalidArgument
from agentmem.kv.ledger import Uint32
from agentmem.v1 import types_pb2
from inference_service.domain import AppendInput, MessagesInput, TokensInput, TurnInput, TurnRequest
from inference_service.engine.generation import Decoding
from inference_service.models.loaded import LoadedModel
from inference_service.models.opening import ModelInfo
from inference_service.text.grammar import Grammar
from inference_service.text.lark import ReasoningRules, reasoning_rules
from inference_service.text.reasoning import ReasoningFormat, ReasoningSplit
from inference_service.threads import WorkerThreads


def check_input(turn_input: TurnInput, model: ModelInfo, logit_bias: Iterable[int] = ()) -> None:
    """Refuse token ids out of bounds, which the backend would use, and more tokens or messages than are counted."""
    content = turn_input.content if isinstance(turn_input, AppendInput) else turn_input
    token_ids = content.token_ids if isinstance(content, TokensInput) else np.empty(0, np.uint32)
    model.renderer.check_tokens(len(content.messages) if isinstance(content, MessagesInput) else len(token_ids))
    unknown = np.flatnonzero(token_ids >= model.vocab_size)[:1].tolist()
    named = [(f"token_ids.ids[{place}]", int(token_ids[place])) for place in unknown]
    named += [(f"sampling.logit_bias[{token_id}]", token_id) for token_id in logit_bias if token_id >= model.vocab_size]
    if named:
        field, token_id = named[0]
        raise InvalidArgument(field, f"{token_id} is not below the vocabulary's {model.vocab_size}")


def check_tool_calls(request: TurnRequest, model: LoadedModel) -> None:
    """Refuse calls whose syntax is unknown, or cannot be held to a grammar."""
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
            "tool_choice but auto and none, or take a model whose tool_parser is one of {', '.join(HELD_PARSERS)}"
        )


async def decoding_of(
    request: TurnRequest, model: LoadedModel, prompt: Uint32, wanted: int, threads: WorkerThreads
) -> Decoding | None:
    """Return how to answer `prompt`; None for Prefill. Raises InvalidArgument for a schema that cannot be honoured."""
    if not request.generates:
        return None
    remaining, reasoning = model.context_length - len(prompt), _reasoning(request, model, prompt)
    held = request.held is not None or request.json_schema is not None
    rules = reasoning_rules(*reasoning, model.tokenizer) if held and reasoning else None
    if request.json_schema is not None and rules is None:
        reasoning = None  # The schema holds the first token.
    return Decoding(
        max_tokens=min(wanted, remaining),
        reason_at_max=(types_pb2.FINISH_REASON_CONTEXT if wanted > remaining else types_pb2.FINISH_REASON_LENGTH),
        sampling=model.sampling.with_given(request.sampling),
        stop=request.stop,
        top_logprobs=request.top_logprobs,
        grammar=await _grammar(request, model, rules, threads),
        call_syntax=model.call_syntax if request.tool_calls else None,
        tools=request.tools,
        reasoning=ReasoningSplit(*reasoning) if reasoning else None,
        transient_stops=model.renderer.transient_stops,
    )


async def _grammar(
    request: TurnRequest, model: LoadedModel, rules: ReasoningRules | None, threads: WorkerThreads
) -> Grammar | None:
    if request.held is not None and model.call_syntax is not None:
        return await threads.compile(partial(model.grammars.compile_answer, request.held, model.call_syntax, rules))
    if request.json_schema is None:  # `check_tool_calls` has found a syntax where calls are held.
        return None
    return await threads.compile(partial(model.grammars.compile, request.json_schema, reasoning=rules))


def _reasoning(request: TurnRequest, model: LoadedModel, prompt: Uint32) -> tuple[ReasoningFormat, str] | None:
    """Return the format of the answer's reasoning, and its first state; None for raw text."""
    content = request.input.content if isinstance(request.input, AppendInput) else request.input
    if model.reasoning is None or not isinstance(content, MessagesInput):
        return None
    return model.reasoning, model.reasoning.state_after_tokens(prompt, model.tokenizer)
