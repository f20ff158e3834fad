import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from agentmem.v1.inference_pb2 import ToolCall
from inference_service.domain import CallPart
from inference_service.families.chats import OBJECT
from inference_service.text.call_parts import CallParts
from inference_service.text.reasoning import ReasoningFormat, ReasoningSplit, Segment
from inference_service.text.streaming import PendingPieces, Piece, TextBlocks, TextStream, beginning_at_end
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax, Tools

_ESCAPED = re.compile(rb"\\.", re.DOTALL)


class AnswerDelta(NamedTuple):
    """Decided output, in order."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    parts: tuple[CallPart, ...] = ()
    """Valid only if the call is completed."""


NO_DELTA = AnswerDelta()


class AnswerStream:
    """Splits tokens into reasoning (by `split`), text, and calls (by `syntax`). One per turn; not thread-safe.

    A possible call is held back; it is text if the parser refuses it or max_tokens cut it, since half of its arguments
    may mean something else. Stop strings match on text, not in or across calls.

    White space next to calls and reasoning is dropped: templates add their own, so answers sent back make the ledger's
    prompt.
    """

    def __init__(
        self,
        stops: Sequence[str] = (),
        syntax: CallSyntax | None = None,
        tools: Tools = (),
        split: ReasoningSplit | None = None,
    ) -> None:
        self._split = split
        self._stops = stops
        self._syntax = syntax
        self._tools = tools
        self._reasoning, self._reasoning_blocks = TextStream(), TextBlocks()
        self._text, self._text_blocks = TextStream(stops), TextBlocks()
        self._token_of_feed: list[int] = []
        """By piece of the text stream."""
        self._tokens = 0
        self._pending = PendingPieces()
        self._in_call = False
        """The pending bytes begin with the start marker."""
        self._searched = self._quoted = 0
        self._in_string = False
        """A JSON string is open at `_quoted`."""
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []
        self._parts: CallParts | None = None
        self._part_id = ""
        self._told: list[CallPart] = []
        self._ids: set[str] = set()

    @property
    def matched(self) -> str | None:
        """Nothing is fed after it."""
        return self._text.matched

    @property
    def called(self) -> bool:
        return bool(self._ids)

    @property
    def reasoning_tokens(self) -> int:
        return self._split.reasoning_tokens if self._split else 0

    @property
    def in_reasoning(self) -> bool:
        return self._split is not None and self._split.in_reasoning

    def feed(self, piece: bytes, *, visible: bool = True) -> AnswerDelta:
        """Take one token's bytes; special tokens are not visible."""
        if self._split is None:
            self._take(Piece(self._tokens, piece, visible))
        else:
            for segment in self._split.feed(piece, visible=visible):
                self._take_segment(segment)
        self._tokens += 1
        return self._delta()

    def finish(self, *, ended: bool) -> AnswerDelta:
        """Return the rest. After a turn that `ended`, a call needs no end marker."""
        for segment in self._split.finish() if self._split and self.matched is None else ():
            self._take_segment(segment)
        while ended and self._in_call and self.matched is None:
            self._end_call(len(self._pending.raw), len(self._pending.raw))
            self._decide()
        self._release(len(self._pending.raw))
        self._add_text(self._text.finish())
        self._texts.append(self._text_blocks.space)
        return self._delta(all_of_it=True)

    def tokens_before_stop(self) -> int:
        """All if none matched."""
        return self._tokens if self.matched is None else self._token_of_feed[self._text.tokens_before_stop()]

    def _take_segment(self, segment: Segment) -> None:
        if self.matched is not None:
            return
        if segment.opens and (segment.reasoning or self._text_blocks.any):
            # A possible call is text, and no stop string spans two messages.
            self._in_call = False
            self._release(len(self._pending.raw))
            if self.matched is None:
                self._end_block(separate=True)
        if not segment.reasoning:
            if segment.opens and self._split is not None and self._split.moved:
                self._text_blocks.start(separate=False)
            self._take(segment.piece)
            return
        if segment.opens:
            self._reasoning = TextStream()
            self._reasoning_blocks.start(separate=True)
        if segment.piece.visible:
            self._thoughts.append(self._reasoning_blocks.add(self._reasoning.feed(segment.piece.data)))

    def _take(self, piece: Piece) -> None:
        if self.matched is None:
            self._pending.add(piece, piece.data)
            self._decide()

    def _decide(self) -> None:
        syntax, raw = self._syntax, self._pending.raw
        if syntax is None:
            self._release(len(raw))
            return
        while self.matched is None:
            if self._in_call:
                end = self._find_end(syntax)
                self._take_part(syntax)
                if end < 0:
                    return
                self._end_call(end, end + len(syntax.end))
                continue
            start = raw.find(syntax.start)
            if start < 0:
                self._release(len(raw) - beginning_at_end(raw, syntax.start))
                return
            self._release(start)
            self._begin_call()

    def _begin_call(self) -> None:
        assert self._syntax is not None
        self._in_call, self._in_string = True, False
        self._parts, self._part_id = (CallParts() if self._syntax.form is OBJECT else None), ""
        self._searched = self._quoted = len(self._syntax.start)

    def _take_part(self, syntax: CallSyntax) -> None:
        if self._parts is not None and (new := self._parts.feed(self._pending.raw, len(syntax.start))):
            name = "" if self._part_id else self._parts.name
            self._part_id = self._part_id or syntax.new_id()
            self._told.append(CallPart(self._part_id, name, new))

    def _whole(self, calls: list[ToolCall]) -> list[ToolCall]:
        """Return complete calls, with parts as sent."""
        if self._parts is None or not self._part_id or not self._parts.whole or len(calls) != 1:
            return calls
        (call,), told = calls, self._parts.text
        same = call.name == self._parts.name and json.loads(told) == json.loads(call.arguments_json)
        return [ToolCall(id=self._part_id, name=call.name, arguments_json=told)] if same else calls

    def _find_end(self, syntax: CallSyntax) -> int:
        """Return the end marker's place outside of JSON strings, or -1."""
        raw = self._pending.raw
        while syntax.end and (end := raw.find(syntax.end, self._searched)) >= 0:
            if syntax.form is not None:
                quotes = _ESCAPED.sub(b"", raw[self._quoted : end]).count(b'"')
                self._in_string, self._quoted = self._in_string ^ (quotes % 2 == 1), end
            if not self._in_string:
                return end
            self._searched = end + 1
        self._searched = max(self._searched, len(raw) - len(syntax.end) + 1)
        return -1

    def _end_call(self, end: int, size: int) -> None:
        """End a call: its text at `end`, its marker at `size`."""
        assert self._syntax is not None
        start, raw = len(self._syntax.start), self._pending.raw
        self._in_call = False
        if calls := self._syntax.calls(bytes(raw[start:end]), self._tools, self._ids):
            self._end_block(separate=False)
            calls = self._whole(calls)
            self._calls += calls
            self._ids |= {call.id for call in calls}
            self._pending.take(size)
        elif (again := raw.rfind(self._syntax.start, start, end)) >= 0:
            # A new start marker: what came before is text.
            self._release(again)
            self._begin_call()
        else:
            self._release(size)

    def _release(self, size: int) -> None:
        """Take pending bytes as text."""
        for piece in self._pending.take(size):
            if piece.visible and self.matched is None:
                self._token_of_feed.append(piece.token)
                self._add_text(self._text.feed(piece.data))

    def _end_block(self, *, separate: bool) -> None:
        self._add_text(self._text.finish())
        self._text, self._token_of_feed = TextStream(self._stops), []
        self._text_blocks.start(separate=separate)

    def _add_text(self, text: str) -> None:
        trims = self._syntax is not None or self._split is not None
        self._texts.append(self._text_blocks.add(text) if trims else text)

    def _delta(self, *, all_of_it: bool = False) -> AnswerDelta:
        text, reasoning = "".join(self._texts), "".join(self._thoughts)
        self._texts.clear()
        # Reasoning after text in the same token waits for the next.
        if text and not all_of_it and self._split is not None and self._split.is_reasoning:
            reasoning = ""
        else:
            self._thoughts.clear()
        said = AnswerDelta(reasoning, text, tuple(self._calls), tuple(self._told))
        self._told.clear()
        self._calls.clear()
        return said


def split_answer(
    of: ReasoningFormat, tokenizer: Tokenizer, prompt: Sequence[int], token_ids: Sequence[int]
) -> AnswerDelta:
    """Return an answer after `prompt`; calls are text."""
    stream = AnswerStream(split=ReasoningSplit(of, of.state_after_tokens(prompt, tokenizer)))
    said = []
    for special, run in groupby(token_ids, tokenizer.special_ids.__contains__):
        pieces = [tokenizer.token_bytes(i) for i in run if i not in tokenizer.eos_ids]
        # Ordinary text at once, since markers are found across tokens.
        said += [stream.feed(piece, visible=not special) for piece in (pieces if special else [b"".join(pieces)])]
    said.append(stream.finish(ended=True))
    return AnswerDelta("".join(each.reasoning for each in said), "".join(each.text for each in said))
