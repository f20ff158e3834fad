"""How the answers of a request are sampled, in the contract's words."""

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from gateway.openai.response_schema import ResponseRequest
from gateway.openai.schema import SampledRequest

DEFAULT_TEMPERATURE = 1.0
"""OpenAI's; the contract's is 0."""

_SAME_NAME = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def sampling(request: SampledRequest) -> types_pb2.Sampling:
    """The sampling of its first choice. Raises InvalidArgument for a key of logit_bias that is no token id."""
    given = {name: value for name in _SAME_NAME if (value := getattr(request, name)) is not None}
    return types_pb2.Sampling(
        temperature=DEFAULT_TEMPERATURE if request.temperature is None else request.temperature,
        # Negative seeds are allowed in the dialect and not in the contract.
        seed=None if request.seed is None else request.seed % 2**64,
        logit_bias={_token_id(key): bias for key, bias in (request.logit_bias or {}).items()},
        **given,
    )


def stops(request: SampledRequest) -> list[str]:
    """Its stop strings."""
    return [request.stop] if isinstance(request.stop, str) else request.stop or []


def choices(turn: inference_pb2.GenerateRequest, number: int) -> tuple[inference_pb2.GenerateRequest, ...]:
    """`turn` for each of several choices: under a seed each has its own, so that they differ and can be had again."""
    return tuple(_choice(turn, index) for index in range(number))


def refuse_idle_stream_options(request: SampledRequest | ResponseRequest) -> None:
    """Raises InvalidArgument for stream_options without a stream."""
    if request.stream_options is not None and not request.stream:
        raise InvalidArgument("stream_options", "is only allowed with stream")


def _choice(turn: inference_pb2.GenerateRequest, number: int) -> inference_pb2.GenerateRequest:
    if number == 0:
        return turn
    choice = inference_pb2.GenerateRequest()
    choice.CopyFrom(turn)
    if choice.sampling.HasField("seed"):
        choice.sampling.seed = (choice.sampling.seed + number) % 2**64
    return choice


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < 2**32) or key != str(int(key)):
        raise InvalidArgument("logit_bias", "its keys must be token ids")
    return int(key)
