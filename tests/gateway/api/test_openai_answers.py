from hypothesis import given
from hypothesis import strategies as st

from agentmem.v1 import types_pb2
from agentmem.words import cached_tokens
from gateway.api.openai_answers import usage

COUNTS = st.integers(0, 1000)
USAGES = st.lists(
    st.builds(
        lambda prompt, said, *cached: types_pb2.Usage(
            prompt_tokens=prompt, completion_tokens=said, cached=[types_pb2.TierTokens(tokens=each) for each in cached]
        ),
        *(COUNTS, COUNTS, COUNTS, COUNTS),
    ),
    min_size=1,
)


@given(USAGES, st.integers(1, 3))
def test_each_prompt_counts_once_and_each_choice_what_it_said(choices: list[types_pb2.Usage], each: int) -> None:
    prompts = choices[::each]
    told = usage(prompts, choices)
    assert told["prompt_tokens"] == sum(prompt.prompt_tokens for prompt in prompts)
    assert told["completion_tokens"] == sum(choice.completion_tokens for choice in choices)
    assert told["total_tokens"] == told["prompt_tokens"] + told["completion_tokens"]
    assert told["prompt_tokens_details"]["cached_tokens"] == sum(map(cached_tokens, prompts))
