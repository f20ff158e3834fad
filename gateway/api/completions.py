"""Without X-Agent-ID nothing of a raw prompt is kept; with it, the prompt is the whole text so far of that agent."""

from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.words import finish_reason
from gateway.api.errors import COMPLETIONS
from gateway.api.exchange import Exchange, Heard, Incoming, SseEvent, turn_of
from gateway.api.openai import No, SampledRequest, choices
from gateway.api.openai_answers import CompletionsAnswer
from gateway.api.validation import UINT32, Json, Many, limit

MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this endpoint alone."""
_MAX_LOGPROBS = 5

_TokenIds = Annotated[Many[Annotated[int, Field(ge=0, le=UINT32)]], Field(min_length=1)]
_Several = Field(min_length=1, max_length=MAX_PROMPTS)


class CompletionRequest(SampledRequest):
    prompt: str | Annotated[Many[str], _Several] | _TokenIds | Annotated[Many[_TokenIds], _Several]
    logprobs: Annotated[int, Field(ge=0, le=_MAX_LOGPROBS)] | None = None
    echo: No | None = None
    best_of: int | None = None
    parse_special: bool | None = Field(
        None,
        description="whether special tokens in prompts of text are parsed, which may hold a rendered chat; true unless "
        "given, as vLLM has it, and false where others write parts of the prompt",
    )

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


def completion_exchange(request: CompletionRequest, incoming: Incoming) -> Exchange:
    """Raises InvalidArgument for contradictions."""
    prompts, per_prompt = request.prompts, request.n or 1
    if request.best_of not in (None, per_prompt):
        raise InvalidArgument("best_of", "is only supported where it is n: every choice is returned")
    if len(prompts) > 1 and incoming.agent_id:
        raise InvalidArgument("prompt", "must be one prompt with X-Agent-ID: an agent takes one turn at a time")
    if len(prompts) * per_prompt > MAX_PROMPTS:
        raise InvalidArgument("prompt", f"asks with n for more than {MAX_PROMPTS} choices; send several requests")
    turns = choices([_turn(request, prompt, incoming) for prompt in prompts], per_prompt)
    answer = CompletionAnswer(
        f"cmpl-{incoming.unique}",
        incoming.created,
        request.model or "",
        prompts=len(prompts),
        per_prompt=per_prompt,
        logprobs=request.logprobs is not None,
        include_usage=request.include_usage,
    )
    return Exchange(turns, answer, bool(request.stream), others=request.unread)


def _turn(request: CompletionRequest, prompt: str | list[int], incoming: Incoming) -> inference_pb2.GenerateRequest:
    text = {"prompt": prompt, "parse_special": request.parse_special is not False}
    return turn_of(
        incoming,
        request,
        stop=request.stops,
        max_tokens=limit(DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens),
        top_logprobs=request.logprobs,
        **(text if isinstance(prompt, str) else {"token_ids": types_pb2.TokenIds(ids=prompt)}),
    )


class CompletionAnswer(CompletionsAnswer):
    object = chunk_object = "text_completion"
    dialect = COMPLETIONS

    def choice(self, index: int, heard: Heard) -> Json:
        logprobs = _logprobs(heard.logprobs, 0)[0] if self._wants_logprobs else None
        return _choice(index, "".join(heard.texts), logprobs, finish_reason(heard.finished.reason))

    def nothing(self, index: int) -> Json:
        return _choice(index, "", None, None)

    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterator[SseEvent]:
        heard = self.heard[choice]
        heard.note(event)
        match event.WhichOneof("event"):
            case "delta":
                logprobs = None
                if self._wants_logprobs:
                    logprobs, heard.characters = _logprobs(event.delta.logprobs, heard.characters)
                if event.delta.text or (logprobs and logprobs["tokens"]):
                    yield self.chunk(_choice(choice, event.delta.text, logprobs, None))
            case "finished":
                yield self.chunk(_choice(choice, "", None, finish_reason(event.finished.reason)), ends=True)


def _choice(index: int, text: str, logprobs: Json | None, reason: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _logprobs(tokens: Iterable[inference_pb2.TokenLogprob], characters: int) -> tuple[Json, int]:
    """`characters` come before the tokens; return how many there are after them, too."""
    logprobs: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token in tokens:
        name, inside = _name(token.token_bytes), bool(token.token_bytes) and _continues(token.token_bytes[0])
        logprobs["tokens"].append(name)
        logprobs["token_logprobs"].append(token.logprob)
        logprobs["top_logprobs"].append(
            {**{_name(one.token_bytes): one.logprob for one in token.top}, name: token.logprob}
        )
        logprobs["text_offset"].append(max(0, characters - inside))  # inside of a character: where that one begins
        characters += sum(not _continues(byte) for byte in token.token_bytes)
    return logprobs, characters


def _continues(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _name(token: bytes) -> str:
    """Return the token as text, or as "bytes:" and escapes, as OpenAI does."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
