"""What a request to /v1/completions may hold; everything else is refused by name.

Supported: model, prompt (a string, strings, token ids, or lists of them), stream, stream_options.include_usage,
max_tokens (16 unless given, as OpenAI has it), temperature, top_p, stop, seed, n, logprobs, logit_bias,
presence_penalty, frequency_penalty; and beyond OpenAI's top_k, min_p, repetition_penalty, parse_special. Accepted
without effect: user, echo=false, and best_of where it is n. A null counts as not given.
"""

from typing import Annotated, Any

from pydantic import Field, model_validator

from gateway.fields import UINT32, Text
from gateway.openai.schema import No, SampledRequest, without_nulls

MAX_PROMPTS = 64
_MAX_LOGPROBS = 5
_UNSUPPORTED = frozenset({"suffix"})

_TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=UINT32)]], Field(min_length=1)]
_Several = Field(min_length=1, max_length=MAX_PROMPTS)


class CompletionRequest(SampledRequest):
    """The body of a request."""

    prompt: Text | Annotated[list[Text], _Several] | _TokenIds | Annotated[list[_TokenIds], _Several]
    logprobs: Annotated[int, Field(ge=0, le=_MAX_LOGPROBS)] | None = None
    echo: No | None = None
    best_of: int | None = None
    parse_special: bool | None = Field(
        None,
        description="whether special tokens in prompts of text are parsed, which may hold a rendered chat; true unless "
        "given, as vLLM has it, and false where others write parts of the prompt",
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return without_nulls(data, _UNSUPPORTED)

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts one by one; never empty."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt
