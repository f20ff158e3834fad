"""Turns are checked before the engine takes them up."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmem.errors import ContextExceeded, FailedPrecondition, InvalidArgument
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from inference_service.domain import (
    AppendInput,
    HeldAnswer,
    MessagesInput,
    TextInput,
    TokensInput,
    TurnRequest,
)
from inference_service.memory.match import MatchLimits
from inference_service.storage.client import Opened
from inference_service.text.rendering import Renderer
from inference_service.threads import WorkerThreads
from inference_service.turns.decoding import check_input, check_tool_calls
from inference_service.turns.planning import TurnPlanner
from inference_service.turns.turn import Turn
from tests.inference_service.published_models import text_model
from tests.inference_service.real_tokenizers import byte_level
from tests.inference_service.turns.world import NoSnapshots


def test_ids_that_the_model_has_no_logits_for_are_refused() -> None:
    renderer = Renderer(byte_level(), None, context_length=2)
    model = cast(Any, SimpleNamespace(vocab_size=10, renderer=renderer))
    check_input(TokensInput((0, 9)), model, [0, 9])
    with pytest.raises(FailedPrecondition, match="more than 4 tokens"):
        check_input(TokensInput((0, 9) * 3), model)
    for chat in (MessagesInput(({"role": "user"},) * 5), AppendInput(MessagesInput(({"role": "user"},) * 5))):
        with pytest.raises(FailedPrecondition, match="more than 4 tokens"):  # no message without a token
            check_input(chat, model)
    for arguments, field in (
        ((TokensInput((1, 10)), model), "token_ids.ids[1]"),
        ((TokensInput((1,)), model, [2**32 - 1]), "sampling.logit_bias[4294967295]"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            check_input(*arguments)
        assert caught.value.field == field


def test_calls_cannot_be_told_apart_without_a_parser() -> None:
    def request(*, tool_calls: bool, held: HeldAnswer | None = None) -> TurnRequest:
        return TurnRequest(AgentKey("n", "a", "m"), TokensInput((1,)), b"", tool_calls=tool_calls, held=held)

    without = cast(Any, SimpleNamespace(model_id="m", call_syntax=None))
    check_tool_calls(request(tool_calls=False), without)
    check_tool_calls(request(tool_calls=True), cast(Any, SimpleNamespace(call_syntax=object())))
    with pytest.raises(FailedPrecondition, match="no tool parser"):
        check_tool_calls(request(tool_calls=True), without)
    odd: Any = SimpleNamespace(model_id="m", call_syntax=SimpleNamespace(name="pythonic", form=None))
    check_tool_calls(request(tool_calls=True), odd)
    with pytest.raises(FailedPrecondition, match="as pythonic does, and not as JSON"):
        check_tool_calls(request(tool_calls=True, held=HeldAnswer(())), odd)


async def test_one_token_of_the_context_is_left_for_the_answer() -> None:
    text = "The colour of the boat is green."
    tokens = len(byte_level().encode(text, parse_special=False))
    planner = TurnPlanner(cast(Any, NoSnapshots()), WorkerThreads(), MatchLimits(), 16)

    async def plan(context_length: int, *, generates: bool = True) -> None:
        request = TurnRequest(AgentKey("n", "a", "m"), TextInput(text), b"", generates=generates)
        model = text_model(byte_level(), context_length=context_length)
        await planner.plan(Turn(request), model, Opened(Version("u", 1), Ledger()))

    await plan(tokens + 1)
    await plan(tokens, generates=False)
    with pytest.raises(ContextExceeded, match="context holds") as caught:
        await plan(tokens)
    assert (caught.value.tokens, caught.value.limit) == (tokens, tokens - 1)
    with pytest.raises(ContextExceeded) as caught:
        await plan(tokens - 1, generates=False)
    assert (caught.value.tokens, caught.value.limit) == (tokens, tokens - 1)


@pytest.mark.parametrize(
    ("tokenizer_hash", "kv_fingerprint", "incompatible"),
    [
        ("the present", "", False),
        ("the present", "present", False),
        ("the present", "of other weights", True),
        ("an older tokenizer", "present", True),
        ("an older tokenizer", "", True),
    ],
)
async def test_kv_serves_the_model_and_tokenizer_that_it_was_computed_with(
    tokenizer_hash: str, kv_fingerprint: str, incompatible: bool
) -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("The colour of the boat is green.", parse_special=False)
    made_by = tokenizer.hash if tokenizer_hash == "the present" else tokenizer_hash
    ledger = Ledger().followed_by(ids, tokenizer.pieces(ids), made_by)
    planner = TurnPlanner(cast(Any, NoSnapshots()), WorkerThreads(), MatchLimits(), 16)
    request = TurnRequest(AgentKey("n", "a", "m"), AppendInput(TextInput(" And now?")), b"")
    opened = Opened(Version("u", 1), ledger, kv_fingerprint=kv_fingerprint)
    turn = Turn(request)
    await planner.plan(turn, text_model(tokenizer, fingerprint="present"), opened)
    assert turn.plan.keep_tokens == len(ids)
    assert (turn.lookup.incompatible, turn.retokenized) == (incompatible, made_by != tokenizer.hash)
    assert turn.keep_tokens == (0 if turn.retokenized else len(ids))
