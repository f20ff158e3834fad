"""An answer on the screen, which may be told more than once: each character of it is written once."""

from collections.abc import Callable

from gateway.cli.text import printable

Write = Callable[[str], object]


class Answer:
    """Writes an answer as it comes: `begin`, any number of `add` and `think`, `end`; and all again if the stream broke.

    Where the answer begins again as it did before, only what is new is written; where it does not, the whole of it is,
    on a line of its own. What the model thinks is written by `write_reasoning`, a blank line above what it says; it is
    left out where there is none.
    """

    def __init__(self, write: Write, write_reasoning: Write | None = None) -> None:
        self._write = write
        self._thought = _Told(write_reasoning or (lambda _: None))
        self._said = _Told(write)
        self._shows_reasoning = write_reasoning is not None

    @property
    def is_mid_line(self) -> bool:
        """Something is written, and its line is not ended."""
        last = self._said if self._said.written or not self._shows_reasoning else self._thought
        return last.is_mid_line

    def begin(self) -> None:
        """The answer is told from its beginning."""
        self._thought.begin()
        self._said.begin()

    def think(self, reasoning: str) -> None:
        """The model thinks on."""
        self._thought.add(reasoning)

    def add(self, text: str) -> None:
        """It goes on with `text`."""
        if text and not self._said.written and self._shows_reasoning and self._thought.written:
            self._write("\n\n")
        self._said.add(text)

    def end(self) -> None:
        """It is complete."""
        self._thought.end()
        self._said.end()


class _Told:
    """A text that is told, perhaps again."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.written = ""
        self._text = ""

    @property
    def is_mid_line(self) -> bool:
        return bool(self.written) and not self.written.endswith("\n")

    def begin(self) -> None:
        self._text = ""

    def add(self, text: str) -> None:
        self._text += text
        if not self.written.startswith(self._text):
            self._catch_up()

    def end(self) -> None:
        if self.written != self._text:
            self._catch_up()

    def _catch_up(self) -> None:
        if self._text.startswith(self.written):
            new = self._text[len(self.written) :]
        else:
            new = f"\n{self._text}" if self.is_mid_line else self._text
        self._write(printable(new, keep="\n\t"))
        self.written = self._text
