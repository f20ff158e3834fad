import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.openai import MAX_CHOICE_BYTES, choices


@given(st.integers(0, 2**64 - 1), st.integers(1, 16))
def test_choices_have_seeds_of_their_own(seed: int, number: int) -> None:
    turn = inference_pb2.GenerateRequest(prompt="hi", sampling=types_pb2.Sampling(seed=seed))
    made = choices([turn], number)
    assert made[0] == turn, "one choice alone is the first of several"
    assert len({choice.sampling.seed for choice in made}) == number
    assert {choice.prompt for choice in made} == {"hi"}


def test_without_a_seed_choices_are_random() -> None:
    turn = inference_pb2.GenerateRequest(prompt="hi")
    assert choices([turn], 3) == (turn, turn, turn)


def test_copies_of_long_prompts_have_a_limit() -> None:
    turn = inference_pb2.GenerateRequest(prompt="x" * (MAX_CHOICE_BYTES // 8))
    assert len(choices([turn], 7)) == len(choices([turn] * 3, 2)) + 1 == 7
    assert len(choices([turn] * 9, 1)) == 9  # as many as came
    for turns, number in (([turn], 8), ([turn] * 4, 2)):
        with pytest.raises(InvalidArgument, match="n: asks for too many choices"):
            choices(turns, number)
