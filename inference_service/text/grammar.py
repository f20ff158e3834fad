"""Which tokens may come next, so that a text becomes JSON that fits a schema, or tool calls: by llguidance.

A `Grammar` is one turn's state: which tokens may come next, and what has come. The library counts its work and limits
it; what it may take of a thread's time even so is limited here, because all turns share the thread.
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
    # Below the defaults, in which the costliest schemas found took seconds a step and hundreds of megabytes. What a
    # step may look at stays: patterns over a vocabulary of 128K need a quarter of it, and all of it takes 8 ms.
    initial_lexer_fuel=100_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
_SECONDS_FOR_TOOLS = 5.0
"""Of the thread's own time, for all tools of a turn: other turns' schemas wait behind it."""
_ANY_OBJECT = '{"type": "object"}'
_TRIED_STEPS = 8
_SECONDS_AT_ONCE = 0.5
_SECONDS_PER_TOKEN = 0.01
_TEXT_BYTES = frozenset((*b"\t\n\r", *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1), 0xF3, 0xF4))
"""The bytes that JSON in UTF-8 is made of. 0xF1 and 0xF2 begin no character that is assigned, and SmolLM2's tokenizer
has none of them: no token that a grammar allows has such a byte then.
"""


class Grammars:
    """Compiles schemas for one model, whose logits are `vocab_size`. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None

    def prepare(self) -> None:
        """Sort the vocabulary now, if it can be used.

        Takes half a second for 128K tokens, and holds the GIL: best done before there are streams.
        """
        with suppress(FailedPrecondition):
            self._vocabulary_of_model()

    def compile(self, schema: str, field: str = FIELD, reasoning: ReasoningRules | None = None) -> "Grammar":
        """Return a grammar at its beginning, of a JSON Schema that is the JSON of an object, behind `reasoning`.

        Takes milliseconds, and for a hostile schema a second or two, without the GIL: neither on the event loop nor on
        the engine thread. Raises InvalidArgument, which names `field`, where the schema cannot be honoured, and
        FailedPrecondition where the model's tokens cannot be held to any.
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
        """Return a grammar at its beginning, of an answer that may call tools, behind `reasoning`. `syntax` has a form.

        Threads and errors are as with `compile`. The arguments of a tool that is not strict are held to any object,
        where its schema cannot be honoured.
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
    """One turn's place in its grammar. One thread at a time.

    Both `allowed` and `advance` raise InvalidArgument where following the schema takes more than it may; after
    that only `restart` may be called.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: Iterable[int], field: str = FIELD) -> None:
        self._field = field
        self._first = matcher
        self._matcher = matcher.deep_copy()
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(eos_ids)
        self._seconds = 0.0
        self.tokens = 0
        """How many tokens came."""
        self.ended = False
        """An end-of-sequence token came; nothing may follow."""

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return which tokens may come next, bool [vocab_size]: all EOS tokens once the text can end here."""
        bits = self._timed(self._matcher.compute_bitmask)
        if self._matcher.is_error():
            raise problem(self._matcher.get_error(), self._field)
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=self._vocab_size, bitorder="little").view(np.bool_)
        if not mask.any():
            raise too_complex(self._field)
        return mask

    def advance(self, token_id: int) -> None:
        """Take the next token, one of the allowed."""
        self.ended = token_id in self._eos_ids
        if not self._timed(lambda: self._matcher.consume_token(token_id)):
            raise problem(self._matcher.get_error(), self._field)
        self.tokens += 1

    def restart(self, token_ids: Sequence[int] = ()) -> None:
        """Go where these tokens lead to from the beginning."""
        self._matcher = self._first.deep_copy()  # `reset` does not bring every error to an end
        self.tokens, self.ended, self._seconds = 0, False, 0.0
        for token_id in token_ids:
            self.advance(token_id)

    def try_out(self) -> None:
        """Take the first steps and come back, so that a schema which cannot be followed is found before it is used."""
        for _ in range(_TRIED_STEPS):
            if self.ended:
                break
            self.advance(int(self.allowed().argmax()))
        self.restart()

    def _timed(self, work: Callable[[], _T]) -> _T:
        # Of this thread's own time, so that a busy machine makes no schema too complex.
        started = time.thread_time()
        result = work()
        self._seconds += time.thread_time() - started
        if self._seconds > _SECONDS_AT_ONCE + _SECONDS_PER_TOKEN * self.tokens:
            raise too_complex(self._field)
        return result


class _Vocabulary:
    """The model's tokens as llguidance wants them."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        # Ids that the tokenizer does not know stand for no bytes, and those are never allowed.
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        special = tokenizer.special_ids | tokenizer.eos_ids
        self.special_token_ids = sorted(i for i in special if i < vocab_size)
        self.eos_ids = sorted(i for i in tokenizer.eos_ids if i < vocab_size)
        self.eos_token_id = self.eos_ids[0] if self.eos_ids else None
        self.of_bytes = {piece[0]: i for i, piece in enumerate(self.tokens) if len(piece) == 1 and i not in special}

    def __call__(self, text: bytes) -> list[int]:
        """Return tokens of a text that has no choice: as the model has seen it tokenized, if that is exact."""
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
