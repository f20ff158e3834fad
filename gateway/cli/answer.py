"""An answer on the screen, which may be told more than once: each character of it is written once."""

from collections.abc import Callable

from gateway.cli.text import printable


class Answer:
    """Writes an answer as it comes: `begin`, any number of `add`, `end`; and all again if the stream broke.

    Where the answer begins again as it did before, only what is new is written; where it does not, the whole of it is,
    on a line of its own.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._written = ""
        self._text = ""

    @property
    def is_mid_line(self) -> bool:
        """Something is written, and its line is not ended."""
        return bool(self._written) and not self._written.endswith("\n")

    def begin(self) -> None:
        """The answer is told from its beginning."""
        self._text = ""

    def add(self, text: str) -> None:
        """It goes on with `text`."""
        self._text += text
        if not self._written.startswith(self._text):
            self._catch_up()

    def end(self) -> None:
        """It is complete."""
        if self._written != self._text:
            self._catch_up()

    def _catch_up(self) -> None:
        if self._text.startswith(self._written):
            new = self._text[len(self._written) :]
        else:
            new = f"\n{self._text}" if self.is_mid_line else self._text
        self._write(printable(new, keep="\n\t"))
        self._written = self._text
