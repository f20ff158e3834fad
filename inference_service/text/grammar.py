"""Allowed next tokens for JSON of a schema, or tool calls, by llguidance. Its time on a shared thread is limited
here.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from agentmem.errors import FailedPrecondition, InvalidArgument
from inference_service.domain import HeldAnswer, HeldTool
from inference_service.text.json_schema import FIELD, check, problem, too_complex
from inference_service.text.lark import JSON_OPTIONS, ReasoningRules, answer_grammar, schema_grammar
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax

_T = TypeVar("_T")

_LIMITS = LLParserLimits(
    # The costliest schemas took seconds a step and hundreds of megabytes by default. Steps keep their default: patterns
    # over a vocabulary of 128K need a quarter of it, and all of it takes 8 ms.
    initial_lexer_fuel=100_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
_SECONDS_FOR_TOOLS = 5.0
"""The thread's own time for a turn: others' schemas wait."""
_ANY_OBJECT = '{"type": "object"}'
_TRIED_STEPS = 8
_SECONDS_AT_ONCE = 0.5
_SECONDS_PER_TOKEN = 0.01
_TEXT_BYTES = frozenset((*b"\t\n\r", *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1), 0xF3, 0xF4))
"""UTF-8 of JSON. 0xF1 and 0xF2 begin no assigned character, and SmolLM2's tokenizer lacks them."""


class Grammars:
    """Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None

    def prepare(self) -> None:
        """Sort the vocabulary: half a second for 128K tokens, with the GIL."""
        with suppress(FailedPrecondition):
            self._vocabulary_of_model()

    def compile(self, schema: str, field: str = FIELD, reasoning: ReasoningRules | None = None) -> "Grammar":
        """Return a grammar of a JSON Schema, after `reasoning`. Hostile ones take seconds, without the GIL: on neither
        event loop nor engine thread.

        Raises InvalidArgument for `field`, and FailedPrecondition for the model's tokens.
        """
        try:
            source = LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)  # type: ignore[arg-type]
        except ValueError as error:
            raise problem(str(error), field) from None
        grammar = self._tried(source, field)
        if reasoning is None:
            return grammar
        return self._tried(LLMatcher.grammar_from_lark(schema_grammar(schema, reasoning)), field)

    def compile_answer(
        self, answer: HeldAnswer, syntax: CallSyntax, reasoning: ReasoningRules | None = None
    ) -> "Grammar":
        """Return a grammar of an answer that may call tools, as `compile`. Without strict, unsupported arguments may be
        any object.
        """
        if answer.json_schema is not None:
            self.compile(answer.json_schema)
        began, tools = time.thread_time(), []
        for tool in answer.tools:
            if time.thread_time() - began > _SECONDS_FOR_TOOLS:
                raise too_complex(tool.field)
            tools.append(self._honoured(tool))
        answer = replace(answer, tools=tuple(tools))
        source = LLMatcher.grammar_from_lark(answer_grammar(answer, syntax, self._tokenizer, reasoning))
        return self._tried(source, answer.tools[0].field)

    def _honoured(self, tool: HeldTool) -> HeldTool:
        try:
            check(json.loads(tool.arguments), tool.field)
            self.compile(tool.arguments, tool.field)
        except InvalidArgument:
            if tool.strict:
                raise
            return replace(tool, arguments=_ANY_OBJECT)
        return tool

    def _tried(self, source: str, field: str) -> "Grammar":
        vocabulary = self._vocabulary_of_model()
        matcher = LLMatcher(vocabulary, source, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise problem(matcher.get_error(), field)
        grammar = Grammar(matcher, vocabulary.vocab_size, self._tokenizer.eos_ids, field)
        grammar.try_out()
        return grammar

    def _vocabulary_of_model(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer, self._vocab_size)
            return self._vocabulary


class Grammar:
    """A turn's position. One thread at a time. `allowed` and `advance` raise InvalidArgument for too much work; then
    only `restart` may follow.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: Iterable[int], field: str = FIELD) -> None:
        self._field = field
        self._first = matcher
        self._matcher = matcher.deep_copy()
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(eos_ids)
        self._seconds = 0.0
        self.tokens = 0
        self.ended = False

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return allowed tokens, bool [vocab_size]."""
        bits = self._timed(self._matcher.compute_bitmask)
        if self._matcher.is_error():
            raise problem(self._matcher.get_error(), self._field)
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=self._vocab_size, bitorder="little").view(np.bool_)
        if not mask.any():
            raise too_complex(self._field)
        return mask

    def advance(self, token_id: int) -> None:
        self.ended = token_id in self._eos_ids
        if not self._timed(lambda: self._matcher.consume_token(token_id)):
            raise problem(self._matcher.get_error(), self._field)
        self.tokens += 1

    def restart(self, token_ids: Sequence[int] = ()) -> None:
        self._matcher = self._first.deep_copy()  # `reset` does not clear every error
        self.tokens, self.ended, self._seconds = 0, False, 0.0
        for token_id in token_ids:
            self.advance(token_id)

    def try_out(self) -> None:
        """Take first steps and return, to find a bad schema early."""
        for _ in range(_TRIED_STEPS):
            if self.ended:
                break
            self.advance(int(self.allowed().argmax()))
        self.restart()

    def _timed(self, work: Callable[[], _T]) -> _T:
        # The thread's own time: a busy machine makes no schema too complex.
        started = time.thread_time()
        result = work()
        self._seconds += time.thread_time() - started
        if self._seconds > _SECONDS_AT_ONCE + _SECONDS_PER_TOKEN * self.tokens:
            raise too_complex(self._field)
        return result


class _Vocabulary:
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        # Ids without a token are never allowed.
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        special = tokenizer.special_ids | tokenizer.eos_ids
        self.special_token_ids = sorted(i for i in special if i < vocab_size)
        self.eos_ids = sorted(i for i in tokenizer.eos_ids if i < vocab_size)
        self.eos_token_id = self.eos_ids[0] if self.eos_ids else None
        self.of_bytes = {piece[0]: i for i, piece in enumerate(self.tokens) if len(piece) == 1 and i not in special}

    def __call__(self, text: bytes) -> list[int]:
        """Tokenize forced text as the model has seen it, if that is exact."""
        token_ids = self._tokenizer.encode(text.decode(), parse_special=False, continues=True)
        if b"".join(self.tokens[i] for i in token_ids if i < len(self.tokens)) == text:
            return token_ids
        return [self.of_bytes[byte] for byte in text if byte in self.of_bytes]


def _vocabulary(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    tokens = _Vocabulary(tokenizer, vocab_size)
    if not tokens.eos_ids:
        raise FailedPrecondition("the model has no end-of-sequence token, so what it writes cannot be held to a schema")
    if missing := _TEXT_BYTES - tokens.of_bytes.keys():
        raise FailedPrecondition(
            f"the model's tokenizer has no token for {len(missing)} of the bytes that text is made of, so what "
            "it writes cannot be held to a schema"
        )
    return LLTokenizer(TokenizerWrapper(tokens), eos_token=tokens.eos_ids, slices=LLTokenizer.json_slices())
