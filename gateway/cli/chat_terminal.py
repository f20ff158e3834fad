"""The line editor of `agentmem chat`, with a history and commands."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from agentmem.diagnostics import did_you_mean

COMMANDS: Final = ("/help", "/bye")
_COMMAND: Final = re.compile(r"/[a-zA-Z?]*")
"""One word. "/etc/hosts is empty" is for the agent."""

_HELP: Final = """\
/help        this text
/bye         ends the chat, as Ctrl-D does
Enter        sends; a paste of several lines is one message
Alt-Enter    a new line in the message; or Esc, then Enter
Up, Ctrl-R   what you said before; it is kept in {history}
Ctrl-C       stops an answer: the agent remembers nothing of that turn; at the prompt, clears the message"""


def history_file() -> Path:
    data = os.environ.get("XDG_DATA_HOME", "")
    return (Path(data) if os.path.isabs(data) else Path("~/.local/share").expanduser()) / "agentmem" / "chat_history"


def messages(file: Path, *, source: Input | None = None, to: Output | None = None) -> Iterator[str]:
    """Yield the user's messages until /bye or the end of input, and answer commands. `file` is the history."""
    history, place = _history(file)
    session: PromptSession[str] = PromptSession(
        HTML("<b>&gt;</b> "),
        history=history,
        multiline=True,
        prompt_continuation="  ",
        key_bindings=_keys(),
        enable_suspend=True,
        input=source,
        output=to,
    )
    while True:
        try:
            # Invalid UTF-8 comes as lone surrogates, which no message can hold.
            text = session.prompt().encode(errors="surrogateescape").decode(errors="replace").strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text == "/bye":
            return
        if text == "/help":
            click.echo(_HELP.format(history=place))
        elif _COMMAND.fullmatch(text):
            click.echo(f"there is no command {text}{did_you_mean(text, COMMANDS) or '; /help lists them'}")
        elif text:
            yield text


def _keys() -> KeyBindings:
    """Return bindings: Enter sends, Alt-Enter begins another line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


class _PrivateHistory(FileHistory):
    """A file for its owner alone; if it cannot be written, the history lasts until the chat ends."""

    def load_history_strings(self) -> Iterable[str]:
        with suppress(OSError):
            yield from super().load_history_strings()

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history(file: Path) -> tuple[History, str]:
    """Return the history and a text of its place."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600)) as opened:
            os.fchmod(opened.fileno(), 0o600)
    except OSError as error:
        return InMemoryHistory(), f"no file: {file}: {error.strerror}"
    return _PrivateHistory(file), str(file)
