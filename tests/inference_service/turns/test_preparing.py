"""What is checked before the engine takes a turn up."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmem.errors import FailedPrecondition, InvalidArgument
from agentmem.keys import AgentKey
from inference_service.domain import TokensInput, TurnRequest
from inference_service.turns.preparing import check_tokens, check_tool_calls


def test_ids_that_the_model_has_no_logits_for_are_refused() -> None:
    model = cast(Any, SimpleNamespace(vocab_size=10))
    check_tokens(TokensInput((0, 9)), model, [0, 9])
    for arguments, field in (
        ((TokensInput((1, 10)), model), "token_ids.ids[1]"),
        ((TokensInput((1,)), model, [2**32 - 1]), "sampling.logit_bias[4294967295]"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            check_tokens(*arguments)
        assert caught.value.field == field


def test_calls_cannot_be_told_apart_without_a_parser() -> None:
    def request(*, tool_calls: bool) -> TurnRequest:
        return TurnRequest(AgentKey("n", "a", "m"), TokensInput((1,)), b"", tool_calls=tool_calls)

    without = cast(Any, SimpleNamespace(model_id="m", call_syntax=None))
    check_tool_calls(request(tool_calls=False), without)
    check_tool_calls(request(tool_calls=True), cast(Any, SimpleNamespace(call_syntax=object())))
    with pytest.raises(FailedPrecondition, match="no tool parser"):
        check_tool_calls(request(tool_calls=True), without)
