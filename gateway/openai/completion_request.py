"""A request for completions as turns of the contract, one for each choice of each prompt, prompt by prompt.

A raw prompt has no messages to be found by: without X-Agent-ID nothing of it is kept. With it, the prompt is the whole
text so far of that agent.
"""

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from gateway.exchange import Exchange, Incoming
from gateway.openai.completion_response import CompletionAnswer
from gateway.openai.completion_schema import MAX_PROMPTS, CompletionRequest
from gateway.openai.sampling import choices, refuse_idle_stream_options, sampling, stops

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this endpoint alone."""


def completion_exchange(request: CompletionRequest, incoming: Incoming) -> Exchange:
    """A request as an exchange. Raises InvalidArgument where parameters contradict each other."""
    refuse_idle_stream_options(request)
    prompts, per_prompt = request.prompts, request.n or 1
    if request.best_of not in (None, per_prompt):
        raise InvalidArgument("best_of", "is only supported where it is n: every choice is returned")
    if len(prompts) > 1 and incoming.agent_id:
        raise InvalidArgument("prompt", "must be one prompt with X-Agent-ID: an agent takes one turn at a time")
    if len(prompts) * per_prompt > MAX_PROMPTS:
        raise InvalidArgument("prompt", f"asks with n for more than {MAX_PROMPTS} choices; send several requests")
    turns = tuple(turn for prompt in prompts for turn in choices(_turn(request, prompt, incoming), per_prompt))
    answer = CompletionAnswer(
        f"cmpl-{incoming.unique}",
        incoming.created,
        request.model,
        prompts=len(prompts),
        choices=per_prompt,
        logprobs=request.logprobs is not None,
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
    )
    return Exchange(turns, answer, bool(request.stream))


def _turn(request: CompletionRequest, prompt: str | list[int], incoming: Incoming) -> inference_pb2.GenerateRequest:
    turn = inference_pb2.GenerateRequest(
        key=types_pb2.AgentKey(namespace=incoming.namespace, model_id=request.model),
        request_id=incoming.turn,
        sampling=sampling(request),
        stop=stops(request),
        max_tokens=request.max_tokens or DEFAULT_MAX_TOKENS,
        top_logprobs=request.logprobs,
    )
    if isinstance(prompt, str):
        turn.prompt = prompt
        turn.parse_special = request.parse_special is not False
    else:
        turn.token_ids.ids.extend(prompt)
    return turn
