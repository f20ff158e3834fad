"""`agentmem chat AGENT`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click

from agentmem import Answer, AsyncClient, Reasoning, Restarted, Text
from agentmem.client.answers import Event
from agentmem.client.inputs import AskOptions
from agentmem.console import is_screen, write_json
from agentmem.errors import FailedPrecondition
from agentmem.words import finish_reason, printable
from gateway.api.reports import memory_report
from gateway.cli.agents import find
from gateway.cli.client import NOT_EMPTY, Client, client_options, report_outage
from gateway.cli.serving import Served, serving, wait_for_load
from gateway.cli.turns import turn_line

AGENT = "chat"

_INTERRUPTED = 130


@dataclass
class Conversation:
    agent_id: str
    model_id: str
    system: str = ""
    options: AskOptions = field(default_factory=AskOptions)
    is_new: bool = False

    async def open(self, agentmem: AsyncClient) -> None:
        """Find the model. Raises FailedPrecondition for `system` if the agent exists."""
        if not self.model_id:
            self.model_id = await agentmem.default_model()
        self.is_new = not await find(agentmem, self.agent_id, self.model_id)
        if self.system and not self.is_new:
            has_one = f"{self.agent_id!r} has a memory already"
            raise FailedPrecondition(f"{has_one}; --system is for the first turn of a new agent")

    async def take_turn(self, agentmem: AsyncClient, text: str, shown: "Shown | None" = None) -> Answer:
        agentmem.connection.answered = True  # in `open`: a later silence is an outage
        agent = agentmem.agent(self.agent_id, model=self.model_id, system=self.system)
        async with agent.stream(text, **self.options) as stream:
            async for event in stream.events():
                if shown is not None:
                    shown.show(event)
            return stream.answer


def turn_dict(agent_id: str, answer: Answer) -> dict[str, Any]:
    started, finished = answer.raw
    return {
        **({"reasoning": answer.reasoning} if answer.reasoning else {}),
        "text": answer.text,
        "finish_reason": finish_reason(finished.reason),
        "prompt_tokens": answer.usage.prompt_tokens,
        "completion_tokens": answer.usage.completion_tokens,
        **memory_report(started, finished, agent_id),
    }


def summary(answer: Answer) -> str:
    started, finished = answer.raw
    line = turn_line(started.cache, finished)
    line = line if answer.durable else f"{line} · not durable"
    return f"{line}\n{answer.warning}".rstrip()


@click.command()
@click.argument("agent", default=AGENT, type=NOT_EMPTY)
@click.option("--message", "messages", multiple=True, metavar="TEXT", help="Say this and end; repeatable.")
@click.option("--system", default="", metavar="TEXT", help="System prompt of a new agent.")
@click.option(
    "--model",
    default="",
    help="The model's name; without it the default model. What it needs is started: see below.",
)
@click.option("--keep", is_flag=True, help="Leave running what --model has started.")
@click.option("--max-tokens", type=click.IntRange(1, 2**32 - 1), metavar="N", help="Max tokens of an answer.")
@click.option("--temperature", type=float, metavar="N", help="0 is greedy; by default the model's own.")
@client_options
def chat(
    client: Client,
    agent: str,
    messages: tuple[str, ...],
    system: str,
    model: str,
    keep: bool,
    max_tokens: int | None,
    temperature: float | None,
) -> None:
    """Chat with AGENT, line by line from standard input. The server remembers what was said before.

    AGENT defaults to "chat". At a terminal lines are edited, /help says how, and Ctrl-C stops an answer, of which
    nothing is then remembered.

    With --model, a name, hub id or directory as for `agentmem up`, that model is loaded first. If no gateway runs at
    the default address, `agentmem up` is started in the background, with its own settings, and stopped when the chat
    ends; the model is downloaded first if needed. It writes to logs/up.log in the data directory.
    """
    given = AskOptions()
    if max_tokens is not None:
        given["max_tokens"] = max_tokens
    if temperature is not None:
        given["temperature"] = temperature
    try:
        with serving(client, model, keep=keep) if model else nullcontext(Served(client, "")) as served:
            _talk(served.client, Conversation(agent, served.model, system, given), messages)
    except KeyboardInterrupt:
        click.echo()
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _talk(client: Client, conversation: Conversation, messages: Sequence[str]) -> None:
    client.ask(conversation.open)
    wait_for_load(client, conversation.model_id)
    if not messages and not client.as_json and _at_terminal():
        talk_at_terminal(client, conversation)
        return
    for text in messages or _lines():
        if client.as_json:
            answer = client.ask(partial(conversation.take_turn, text=text))
            write_json(turn_dict(conversation.agent_id, answer))
        else:
            _say(client, conversation, text)


def talk_at_terminal(client: Client, conversation: Conversation) -> None:
    """Take turns until the user ends the chat; failed and stopped turns do not end it."""
    from gateway.cli import chat_terminal  # slow to import

    known = "a new agent" if conversation.is_new else "an agent with a memory"
    about = f"{printable(conversation.agent_id)} on {printable(conversation.model_id)}, {known}"
    click.secho(f"{about} · /help for help, /bye to end", dim=True)
    for text in chat_terminal.messages(chat_terminal.history_file()):
        try:
            _say(client, conversation, text)
        except KeyboardInterrupt:
            click.secho("\nstopped", dim=True)
        except click.ClickException as error:
            click.echo()
            error.show()


def _say(client: Client, conversation: Conversation, text: str) -> None:
    """Run one turn; write dimmed reasoning, the answer, and a line about it."""
    shown = Shown(partial(click.echo, nl=False), partial(click.secho, nl=False, dim=True))
    answer = client.ask(
        partial(conversation.take_turn, text=text, shown=shown),
        lambda why: report_outage(why, mid_line=shown.is_mid_line),
    )
    click.echo()
    click.secho(summary(answer), dim=True)


def _at_terminal() -> bool:
    return is_screen(sys.stdin, sys.stdout)


def _lines() -> Iterator[str]:
    while True:
        if sys.stdin.isatty():
            click.secho("> ", nl=False, bold=True, err=True)
        line = sys.stdin.readline()
        if not line:
            return
        if text := line.strip():
            yield text


class Shown:
    """Writes an answer as it comes, and again on a new line if it came out differently."""

    def __init__(self, write: Callable[[str], object], write_reasoning: Callable[[str], object]) -> None:
        self._write = write
        self._write_reasoning = write_reasoning
        self._last = "\n"
        self._thinks = False

    @property
    def is_mid_line(self) -> bool:
        return self._last != "\n"

    def show(self, event: Event) -> None:
        match event:
            case Restarted():
                if self.is_mid_line:
                    self._write("\n")
                self._thinks = False
            case Reasoning(text):
                self._thinks, self._last = True, text[-1]
                self._write_reasoning(printable(text, keep="\n\t"))
            case Text(text):
                self._write("\n\n" * self._thinks + printable(text, keep="\n\t"))
                self._thinks, self._last = False, text[-1]
