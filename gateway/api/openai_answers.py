"""Token counts, log-probabilities and choices of OpenAI's endpoints."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from agentmem.errors import AgentmemError
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.words import cached_tokens
from gateway.api.errors import Dialect
from gateway.api.exchange import Answer, Heard, SseEvent
from gateway.api.validation import Json

_DONE = SseEvent("[DONE]")
"""A stream that went well ends so."""


def usage(prompts: Iterable[types_pb2.Usage], said: Iterable[types_pb2.Usage]) -> Json:
    """Count each prompt once, as its first choice found it, and what all choices said."""
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
    """Only the answer's tokens count, and no reasoning."""
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


class CompletionsAnswer(Answer):
    """`per_prompt` choices follow each other prompt by prompt. The whole, and the chunk that ends the first choice,
    hold `agentmem`, the memory report.
    """

    object: ClassVar[str]
    chunk_object: ClassVar[str]
    dialect: ClassVar[Dialect]

    def __init__(
        self,
        answer_id: str,
        created: int,
        model: str,
        *,
        prompts: int = 1,
        per_prompt: int = 1,
        logprobs: bool = False,
        include_usage: bool = False,
    ) -> None:
        super().__init__({"id": answer_id, "created": created, "model": model}, prompts * per_prompt)
        self._per_prompt = per_prompt
        self._wants_logprobs = logprobs
        self._include_usage = include_usage

    def choice(self, index: int, heard: Heard) -> Json:
        """Return one choice of the whole."""
        raise NotImplementedError

    def body(self) -> Json:
        choices = [self.choice(index, heard) for index, heard in enumerate(self.heard)]
        head = {**self.head, "object": self.object}
        return {**head, "choices": choices, "usage": self._usage(), "agentmem": self.report()}

    def closing(self) -> Iterator[SseEvent]:
        if self._include_usage:
            yield SseEvent({**self.head, "object": self.chunk_object, "choices": [], "usage": self._usage()})
        yield _DONE

    def failed(self, error: AgentmemError) -> Iterator[SseEvent]:
        yield SseEvent(self.dialect.body(error))

    def alive(self) -> Iterator[SseEvent]:
        goes_on = (index for index, heard in enumerate(self.heard) if not heard.ended)
        if (index := next(goes_on, None)) is not None:
            yield self.chunk(self.nothing(index))

    def nothing(self, index: int) -> Json:
        """Return a choice that goes on without a word."""
        raise NotImplementedError

    def chunk(self, choice: Json, *, ends: bool = False) -> SseEvent:
        """The chunk that `ends` the first choice has the report."""
        report = {"agentmem": self.report()} if ends and choice["index"] == 0 else {}
        nothing_yet = {"usage": None} if self._include_usage else {}
        return SseEvent({**self.head, "object": self.chunk_object, "choices": [choice], **report, **nothing_yet})

    def _usage(self) -> Json:
        usages = [heard.finished.usage for heard in self.heard]
        return usage(usages[:: self._per_prompt], usages)
