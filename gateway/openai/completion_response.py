"""The events of turns in the shape of /v1/completions: one text_completion, or many that each tell of some more.

Beyond OpenAI's fields the whole, and the chunk that ends the first choice, hold `agentmem`: how the first choice's
prompt met the agent's memory. text_offset says where a token begins in the choice's own text, in characters.
"""

from collections.abc import Iterable, Iterator

from agentmem.errors import AgentmemError
from agentmem.v1 import inference_pb2
from gateway.exchange import Json, SseEvent
from gateway.finish_reasons import finish_reason
from gateway.memory_report import memory_report
from gateway.openai.errors import completion_param, error_body
from gateway.openai.told import DONE, usage


class CompletionAnswer:
    """An Answer. Choices are numbered prompt by prompt, `choices` of each; `include_usage` is as in stream_options."""

    def __init__(
        self,
        answer_id: str,
        created: int,
        model: str,
        *,
        prompts: int,
        choices: int,
        logprobs: bool,
        include_usage: bool = False,
    ) -> None:
        self._head = {"id": answer_id, "object": "text_completion", "created": created, "model": model}
        self._per_prompt = choices
        self._include_usage = include_usage
        self._choices = [_Choice(logprobs=logprobs) for _ in range(prompts * choices)]
        self.agent_id = ""

    def add(self, choice: int, event: inference_pb2.GenerateResponse) -> None:
        """As in Answer."""
        self._choices[choice].add(event)

    def body(self) -> Json:
        """The text_completion."""
        choices = [
            _told(index, "".join(choice.texts), choice.logprobs, finish_reason(choice.finished.reason))
            for index, choice in enumerate(self._choices)
        ]
        return {**self._head, "choices": choices, "usage": self._usage(), "agentmem": self._report()}

    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterator[SseEvent]:
        """The chunk that tells of `event`; none where it has nothing new for a reader."""
        logprobs = self._choices[choice].add(event)
        match event.WhichOneof("event"):
            case "delta" if event.delta.text or (logprobs and logprobs["tokens"]):
                yield self._chunk(_told(choice, event.delta.text, logprobs, None))
            case "finished":
                ending = _told(choice, "", None, finish_reason(event.finished.reason))
                yield self._chunk(ending, **({"agentmem": self._report()} if choice == 0 else {}))

    def closing(self) -> Iterator[SseEvent]:
        """The usage, if it was asked for, and [DONE]."""
        if self._include_usage:
            yield SseEvent({**self._head, "choices": [], "usage": self._usage()})
        yield DONE

    def failed(self, error: AgentmemError) -> Iterator[SseEvent]:
        """The error, and no [DONE]."""
        yield SseEvent(error_body(error, completion_param))

    def _chunk(self, choice: Json, **further: Json) -> SseEvent:
        nothing_yet = {"usage": None} if self._include_usage else {}
        return SseEvent({**self._head, "choices": [choice], **further, **nothing_yet})

    def _usage(self) -> Json:
        usages = [choice.finished.usage for choice in self._choices]
        return usage(usages[:: self._per_prompt], usages)

    def _report(self) -> Json:
        first = self._choices[0]
        return memory_report(first.started, first.finished, self.agent_id)


def _told(index: int, text: str, logprobs: Json | None, reason: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


class _Choice:
    """One choice as far as it has come. `logprobs` is None where they were not asked for."""

    def __init__(self, *, logprobs: bool) -> None:
        self.texts: list[str] = []
        self.logprobs: Json | None = _no_logprobs() if logprobs else None
        self.started = inference_pb2.Started()
        self.finished = inference_pb2.Finished()
        self._characters = 0
        """Of the tokens so far."""

    def add(self, event: inference_pb2.GenerateResponse) -> Json | None:
        """Take an event; the log-probabilities that it brought, if they were asked for."""
        match event.WhichOneof("event"):
            case "started":
                self.started = event.started
            case "delta":
                self.texts.append(event.delta.text)
                if self.logprobs is not None:
                    return self._add_logprobs(self.logprobs, event.delta.logprobs)
            case "finished":
                self.finished = event.finished
        return None

    def _add_logprobs(self, so_far: Json, tokens: Iterable[inference_pb2.TokenLogprob]) -> Json:
        new = _no_logprobs()
        for token in tokens:
            alternatives = {_name(each.token_bytes): each.logprob for each in token.top}
            name = _name(token.token_bytes)
            new["tokens"].append(name)
            new["token_logprobs"].append(token.logprob)
            new["top_logprobs"].append({**alternatives, name: token.logprob})
            new["text_offset"].append(self._offset(token.token_bytes))
        for field, values in new.items():
            so_far[field] += values
        return new

    def _offset(self, token: bytes) -> int:
        """Where the next token begins in the text, in characters; inside of one, where that one does."""
        begun = [byte for byte in token if not _continues(byte)]
        inside = bool(token) and _continues(token[0])
        offset = max(0, self._characters - inside)
        self._characters += len(begun)
        return offset


def _continues(byte: int) -> bool:
    """Whether a byte of UTF-8 continues a character."""
    return byte & 0xC0 == 0x80


def _no_logprobs() -> Json:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _name(token: bytes) -> str:
    """The token as text; one that is not a text by itself as "bytes:" and escapes, which is OpenAI's way, too."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
