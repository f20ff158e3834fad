"""Generated tokens as an answer: text, and reasoning and calls of tools told apart from it."""

import re
from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from inference_service.domain import ToolCall
from inference_service.text.reasoning import ReasoningFormat, ReasoningSplit, Segment, beginning_at_end
from inference_service.text.streaming import TextStream
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax, Tools

_LAYOUT = " \t\r\n"
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_BETWEEN = "\n\n"
"""Stands between two blocks of reasoning, and between two messages of one answer."""


class Said(NamedTuple):
    """What is certain now, in this order."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


NOTHING_SAID = Said()


class _Piece(NamedTuple):
    token: int
    bytes: bytes
    visible: bool


class AnswerStream:
    """Turns tokens into text and, where a `syntax` says how calls are written, calls. One per turn; not thread-safe.

    With a `split`, reasoning is told apart before anything else: neither stop strings nor calls are looked for in it.

    What might begin a call is held back until it is decided, and a call is handed out whole, at its end. What turns
    out to be none is text, exactly as if nobody had looked for calls: what the parser does not understand, and a call
    that max_tokens cut short, because half of its arguments may make sense too and mean something else.

    Stop strings match on text only: one inside a call cuts nothing, one cannot begin before a call and end behind it,
    and where a stop string and the marker of a call begin at one place the marker is looked for first. White space next
    to a call or to reasoning belongs to neither: templates put their own there, and a client that sends the answer back
    then makes the prompt that the ledger holds.
    """

    def __init__(
        self,
        stops: Sequence[str] = (),
        syntax: CallSyntax | None = None,
        tools: Tools = (),
        split: ReasoningSplit | None = None,
    ) -> None:
        self._split = split
        self._reasoning = _Reasoning()
        self._stops = stops
        self._syntax = syntax
        self._tools = tools
        self._text = TextStream(stops)
        self._token_of_feed: list[int] = []
        """For each piece that the text stream was fed, the token that it is of."""
        self._tokens = 0
        self._pending: deque[_Piece] = deque()
        self._raw = bytearray()
        """The bytes of the pending pieces."""
        self._in_call = False
        """The pending bytes begin with the start marker."""
        self._searched = self._quoted = 0
        self._in_string = False
        """Whether a string of JSON is open at `_quoted`."""
        self._texts: list[str] = []
        self._space = ""
        """White space that might stand before a call."""
        self._trims_start = False
        """What comes next stands behind a call or reasoning."""
        self._said_text = self._parts_text = False
        self._calls: list[ToolCall] = []
        self._ids: set[str] = set()

    @property
    def matched(self) -> str | None:
        """The stop string that matched. Nothing is fed after it."""
        return self._text.matched

    @property
    def called(self) -> bool:
        """Whether there was a call."""
        return bool(self._ids)

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens hold nothing of the answer: reasoning, and what stands around it."""
        return self._split.reasoning_tokens if self._split else 0

    @property
    def in_reasoning(self) -> bool:
        """Whether the last token was one of them."""
        return self._split is not None and self._split.in_reasoning

    def feed(self, piece: bytes, *, visible: bool = True) -> Said:
        """Take one token's bytes. Those of special tokens are not visible: they count in markers and calls only."""
        if self._split is None:
            self._take(_Piece(self._tokens, piece, visible))
        else:
            for segment in self._split.feed(piece, visible=visible):
                self._take_segment(segment)
        self._tokens += 1
        return self._said()

    def finish(self, *, ended: bool) -> Said:
        """The rest. `ended` says that the model ended its turn, so that a call without an end marker is whole."""
        for segment in self._split.finish() if self._split and self.matched is None else ():
            self._take_segment(segment)
        while ended and self._in_call and self.matched is None:
            self._end_call(len(self._raw), len(self._raw))
            self._decide()
        self._release(len(self._raw))
        self._say(self._text.finish())
        self._texts.append(self._space)
        self._space = ""
        return self._said(all_of_it=True)

    def tokens_before_stop(self) -> int:
        """How many of the tokens lie wholly before the stop string that matched; all of them if none did."""
        return self._tokens if self.matched is None else self._token_of_feed[self._text.tokens_before_stop()]

    def _take_segment(self, segment: Segment) -> None:
        if self.matched is not None:
            return
        if segment.opens and (segment.reasoning or self._said_text):
            self._end_message()
        if not segment.reasoning:
            self._trims_start = self._trims_start or (segment.opens and self._split is not None and self._split.moved)
            self._take(_Piece(segment.token, segment.data, segment.visible))
            return
        if segment.opens:
            self._reasoning.begin()
        if segment.visible:
            self._reasoning.add(segment.data)

    def _end_message(self) -> None:
        """What comes next is no part of this text: what might have gone on is text, and no stop string spans both."""
        self._in_call = False
        self._release(len(self._raw))
        if self.matched is None:
            self._say(self._text.finish())
            self._text, self._token_of_feed = TextStream(self._stops), []
            self._trims_start, self._space = True, ""
            self._parts_text = self._said_text

    def _take(self, piece: _Piece) -> None:
        if self.matched is None:
            self._pending.append(piece)
            self._raw += piece.bytes
            self._decide()

    def _decide(self) -> None:
        """Decide about the pending bytes as far as that can be."""
        syntax = self._syntax
        if syntax is None:
            self._release(len(self._raw))
            return
        while self.matched is None:
            if self._in_call:
                end = self._find_end(syntax)
                if end < 0:
                    return
                self._end_call(end, end + len(syntax.end))
                continue
            start = self._raw.find(syntax.start)
            if start < 0:
                self._release(len(self._raw) - beginning_at_end(self._raw, syntax.start))
                return
            self._release(start)
            self._begin_call()

    def _begin_call(self) -> None:
        assert self._syntax is not None
        self._in_call, self._in_string = True, False
        self._searched = self._quoted = len(self._syntax.start)

    def _find_end(self, syntax: CallSyntax) -> int:
        """Where the marker of the call's end is, -1 while there is none. In a string of JSON it is what that says."""
        while syntax.end and (end := self._raw.find(syntax.end, self._searched)) >= 0:
            if syntax.form is not None:
                quotes = _ESCAPED.sub(b"", self._raw[self._quoted : end]).count(b'"')
                self._in_string, self._quoted = self._in_string ^ (quotes % 2 == 1), end
            if not self._in_string:
                return end
            self._searched = end + 1
        self._searched = max(self._searched, len(self._raw) - len(syntax.end) + 1)
        return -1

    def _end_call(self, end: int, size: int) -> None:
        """The call that began is over: its text ends at `end`, and with its marker at `size`."""
        assert self._syntax is not None
        start = len(self._syntax.start)
        self._in_call = False
        if calls := self._syntax.calls(bytes(self._raw[start:end]), self._tools, self._ids):
            self._say(self._text.finish())
            self._text, self._token_of_feed = TextStream(self._stops), []
            self._trims_start = True
            self._calls += calls
            self._ids |= {call.id for call in calls}
            self._drop(size)
        elif (again := self._raw.rfind(self._syntax.start, start, end)) >= 0:
            # The model began anew: what came before is text, and the last beginning is tried.
            self._release(again)
            self._begin_call()
        else:
            self._release(size)

    def _release(self, size: int) -> None:
        """The first `size` pending bytes are text, as far as they are visible."""
        for piece in self._drop(size):
            if piece.visible and self.matched is None:
                self._token_of_feed.append(piece.token)
                self._say(self._text.feed(piece.bytes))

    def _drop(self, size: int) -> list[_Piece]:
        """Take the first `size` bytes out of what is pending."""
        dropped = []
        del self._raw[:size]
        while self._pending and (size or not self._pending[0].bytes):
            token, data, visible = self._pending.popleft()
            dropped.append(_Piece(token, data[:size], visible))
            if len(data) > size:
                self._pending.appendleft(_Piece(token, data[size:], visible))
            size = max(0, size - len(data))
        return dropped

    def _say(self, text: str) -> None:
        if self._syntax is not None or self._split is not None:
            text = self._space + text
            text = text.lstrip(_LAYOUT) if self._trims_start else text
            kept = text.rstrip(_LAYOUT)
            self._space = text[len(kept) :]
            text = kept
        if text:
            self._texts += [_BETWEEN, text] if self._parts_text else [text]
            self._said_text, self._trims_start, self._parts_text = True, False, False

    def _said(self, *, all_of_it: bool = False) -> Said:
        text = "".join(self._texts)
        # Reasoning that follows a text in the same token waits for the next.
        waits = bool(text) and not all_of_it and self._split is not None and self._split.is_reasoning
        said = Said("" if waits else self._reasoning.take(), text, tuple(self._calls))
        self._texts, self._calls = [], []
        return said


class _Reasoning:
    """Reasoning as text: white space at the ends of a block is left out."""

    def __init__(self) -> None:
        self._stream = TextStream()
        self._ready: list[str] = []
        self._space = ""
        self._begun = self._any = False

    def begin(self) -> None:
        """A block begins."""
        self._stream, self._space, self._begun = TextStream(), "", False

    def add(self, data: bytes) -> None:
        """It goes on."""
        text = self._space + self._stream.feed(data)
        text = text if self._begun else text.lstrip(_LAYOUT)
        kept = text.rstrip(_LAYOUT)
        self._space = text[len(kept) :]
        if kept:
            self._ready += [_BETWEEN, kept] if self._any and not self._begun else [kept]
            self._begun = self._any = True

    def take(self) -> str:
        """What is certain now and was not taken yet."""
        ready, self._ready = "".join(self._ready), []
        return ready


def told_apart(of: ReasoningFormat, tokenizer: Tokenizer, prompt: Sequence[int], token_ids: Sequence[int]) -> Said:
    """What an answer that was generated says, calls as text. `prompt` stands before it."""
    stream = AnswerStream(split=ReasoningSplit(of, of.state_after_tokens(prompt, tokenizer)))
    said = []
    for special, run in groupby(token_ids, tokenizer.special_ids.__contains__):
        pieces = [tokenizer.token_bytes(i) for i in run if i not in tokenizer.eos_ids]
        # Ordinary text at once: there may be much of it, and markers are found across tokens.
        said += [stream.feed(piece, visible=not special) for piece in (pieces if special else [b"".join(pieces)])]
    said.append(stream.finish(ended=True))
    return Said("".join(each.reasoning for each in said), "".join(each.text for each in said))
