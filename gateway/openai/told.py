"""What OpenAI's endpoints tell of a turn in the same words: its tokens' log-probabilities, and usage."""

from collections.abc import Iterable

from agentmem.v1 import inference_pb2, types_pb2
from gateway.exchange import Json, SseEvent
from gateway.memory_report import cached_tokens

DONE = SseEvent("[DONE]")
"""How streams of completions end that went well."""


def usage(prompts: Iterable[types_pb2.Usage], said: Iterable[types_pb2.Usage]) -> Json:
    """Token counts: of each prompt once, as its first choice found it, and of what all choices said."""
    prompts, said = list(prompts), list(said)
    asked = sum(prompt.prompt_tokens for prompt in prompts)
    answered = sum(choice.completion_tokens for choice in said)
    return {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
        "prompt_tokens_details": {"cached_tokens": sum(cached_tokens(prompt) for prompt in prompts)},
        "completion_tokens_details": {"reasoning_tokens": sum(choice.reasoning_tokens for choice in said)},
    }


def logprobs_of(tokens: Iterable[inference_pb2.TokenLogprob]) -> list[Json]:
    """Log-probabilities as chat completions and responses tell of them: of the answer's tokens alone."""
    return [
        {**_token(token), "top_logprobs": [_token(alternative) for alternative in token.top]}
        for token in tokens
        if not token.reasoning
    ]


def _token(token: inference_pb2.TokenLogprob | inference_pb2.TokenAlternative) -> Json:
    return {
        "token": token.token_bytes.decode("utf-8", "replace"),
        "logprob": token.logprob,
        "bytes": list(token.token_bytes),
    }
