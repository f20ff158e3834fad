"""`agentmem chat AGENT`: a conversation in which every turn says only what is new."""

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click
import grpc

from agentmem.channels import closing_stream
from agentmem.errors import FailedPrecondition, NotFound
from agentmem.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from agentmem.words import finish_reason, warning
from gateway.api.reports import memory_report
from gateway.cli.agents import find
from gateway.cli.client import Client, agent_argument, client_options, report_outage, retrying
from gateway.cli.models import registered
from gateway.cli.text import printable, write_json
from gateway.cli.turns import turn_line

_INTERRUPTED = 130


@dataclass
class Conversation:
    """One agent on one model. `is_new` is None where it is not known.

    An agent without a memory gets a whole chat, on condition that it has none yet: another client may have spoken to it
    meanwhile, and a whole chat would replace what was said.
    """

    agent_id: str
    model_id: str
    system: str = ""
    sampling: types_pb2.Sampling = field(default_factory=types_pb2.Sampling)
    max_tokens: int | None = None
    is_new: bool | None = None

    def request(self, text: str) -> inference_pb2.GenerateRequest:
        """Return the next turn, in which the user says `text`."""
        user = types_pb2.ChatMessage(role="user", content=text)
        request = inference_pb2.GenerateRequest(
            key=types_pb2.AgentKey(agent_id=self.agent_id, model_id=self.model_id),
            request_id=f"chat-{uuid.uuid4().hex}",
            sampling=self.sampling,
            max_tokens=self.max_tokens,
        )
        if self.is_new:
            system = [types_pb2.ChatMessage(role="system", content=self.system)] if self.system else []
            request.messages.messages.extend([*system, user])
            request.if_version = 0
        else:
            request.append.messages.messages.append(user)
        return request

    async def open(self, channel: grpc.aio.Channel) -> None:
        """Find out which model is meant and whether the agent has a memory on it.

        A worker that is starting again is waited for. Raises FailedPrecondition where a system message is given to an
        agent that has one.
        """
        if not self.model_id:
            models = await registered(channel)
            if not models:
                raise NotFound("model", "", "none is registered")
            self.model_id = models[0].model_id
        if await find(channel, self.agent_id, self.model_id):
            self._go_on()
        else:
            self.is_new = True

    def _go_on(self) -> None:
        self.is_new = False
        if self.system:
            has_one = f"{self.agent_id!r} has a memory already"
            raise FailedPrecondition(f"{has_one}; --system is for the first turn of a new agent")

    async def take_turn(self, channel: grpc.aio.Channel, text: str, *, echo: bool) -> "Turn":
        """Run one turn; with `echo` write the answer as it comes, and what the model thinks before it dimmed.

        A turn that fails because the worker or the gateway is gone is sent again with the same request_id: the worker
        replays it where it was committed, and computes it again where it was not. If another client spoke to the agent
        first, a first turn is appended to that conversation.
        """
        if self.is_new is None:  # a first turn that failed here may have been kept
            self.is_new = not await find(channel, self.agent_id, self.model_id)
        answer = Answer(partial(click.echo, nl=False), partial(click.secho, nl=False, dim=True)) if echo else None
        try:
            turn = await _generate(channel, self.request(text), answer)
        except grpc.aio.AioRpcError as error:
            if not self.is_new or error.code() is not grpc.StatusCode.ABORTED:
                raise
            self._go_on()
            turn = await _generate(channel, self.request(text), answer)
        self.is_new = False
        return turn


@dataclass
class Turn:
    """The answer to a turn."""

    agent_id: str = ""
    reasoning: str = ""
    text: str = ""
    started: inference_pb2.Started = field(default_factory=inference_pb2.Started)
    finished: inference_pb2.Finished = field(default_factory=inference_pb2.Finished)

    def as_dict(self) -> dict[str, Any]:
        """Return the turn as --json writes it."""
        return {
            **({"reasoning": self.reasoning} if self.reasoning else {}),
            "text": self.text,
            "finish_reason": finish_reason(self.finished.reason),
            "prompt_tokens": self.finished.usage.prompt_tokens,
            "completion_tokens": self.finished.usage.completion_tokens,
            **memory_report(self.started, self.finished, self.agent_id),
        }

    def summary(self) -> str:
        """Return a line about match, tokens reused per tier, time and speed; and any warning."""
        finished = self.finished
        line = turn_line(self.started.cache, finished)
        line = line if finished.durable else f"{line} · not durable"
        return f"{line}\n{warning(self.started)}".rstrip()


@click.command()
@agent_argument
@click.option("--message", "messages", multiple=True, metavar="TEXT", help="Say this and end; repeatable.")
@click.option("--system", default="", metavar="TEXT", help="The system message of a new agent.")
@click.option("--model", default="", help="The model's name; without it the default model.")
@click.option("--max-tokens", type=click.IntRange(1, 2**32 - 1), help="The longest answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0 is greedy, and the default.")
@client_options
def chat(
    client: Client,
    agent: str,
    messages: tuple[str, ...],
    system: str,
    model: str,
    max_tokens: int | None,
    temperature: float | None,
) -> None:
    """Talk with AGENT, line by line from standard input. What was said before is remembered by the server.

    At a terminal lines are edited, /help says how, and Ctrl-C stops an answer, of which nothing is remembered then.
    """
    conversation = Conversation(agent, model, system, types_pb2.Sampling(temperature=temperature), max_tokens)
    try:
        client.ask(conversation.open)
        if not messages and not client.as_json and _at_terminal():
            talk_at_terminal(client, conversation)
            return
        for text in messages or _lines():
            turn = client.ask(partial(conversation.take_turn, text=text, echo=not client.as_json))
            if client.as_json:
                write_json(turn.as_dict())
            else:
                _end_with_summary(turn)
    except KeyboardInterrupt:
        click.echo()
        raise click.exceptions.Exit(_INTERRUPTED) from None


def talk_at_terminal(client: Client, conversation: Conversation) -> None:
    """Take turns until the user ends the chat; a turn that fails, or that Ctrl-C stops, does not end it."""
    from gateway.cli import chat_terminal  # the line editor takes as long to import as all the rest

    known = "a new agent" if conversation.is_new else "an agent with a memory"
    about = f"{printable(conversation.agent_id)} on {printable(conversation.model_id)}, {known}"
    click.secho(f"{about} · /help for help, /bye to end", dim=True)
    for text in chat_terminal.messages(chat_terminal.history_file()):
        try:
            _end_with_summary(client.ask(partial(conversation.take_turn, text=text, echo=True)))
            continue
        except KeyboardInterrupt:
            click.secho("\nstopped", dim=True)
        except click.ClickException as error:
            click.echo()
            error.show()
        if conversation.is_new:
            conversation.is_new = None


def _end_with_summary(turn: Turn) -> None:
    click.echo()
    click.secho(turn.summary(), dim=True)


def _at_terminal() -> bool:
    """Return whether a line editor has what it needs."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _lines() -> Iterator[str]:
    """Yield what the user says, a line at a time, until the end of input; empty lines are skipped."""
    while True:
        if sys.stdin.isatty():
            click.secho("> ", nl=False, bold=True, err=True)
        line = sys.stdin.readline()
        if not line:
            return
        if text := line.strip():
            yield text


async def _generate(channel: grpc.aio.Channel, request: inference_pb2.GenerateRequest, answer: "Answer | None") -> Turn:
    async def attempt() -> Turn:
        turn = Turn(request.key.agent_id)
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        async with closing_stream(call) as events:
            async for event in events:
                match event.WhichOneof("event"):
                    case "started":
                        turn.started = event.started
                    case "delta":
                        turn.reasoning += event.delta.reasoning
                        turn.text += event.delta.text
                        if answer is not None:
                            answer.show(turn.reasoning, turn.text)
                    case "finished":
                        turn.finished = event.finished
        if answer is not None:
            answer.show(turn.reasoning, turn.text, complete=True)
        return turn

    def outage(why: str) -> None:
        report_outage(why, mid_line=answer is not None and answer.is_mid_line)

    return await retrying(attempt, outage, gateway_too=True)


class Answer:
    """Writes an answer as it grows; all of it again, on a line of its own, where it is another after its stream broke.

    What the model thinks is written by `write_reasoning`, a blank line above what it says.
    """

    def __init__(self, write: Callable[[str], object], write_reasoning: Callable[[str], object]) -> None:
        self._write = write
        self._write_reasoning = write_reasoning
        self._written = ""

    @property
    def is_mid_line(self) -> bool:
        """Whether the line that was written last is not ended."""
        return bool(self._written) and not self._written.endswith("\n")

    def show(self, reasoning: str, text: str, *, complete: bool = False) -> None:
        """Write what is new of the answer so far. One that begins again is waited for, until it is `complete`."""
        whole = reasoning + ("\n\n" if reasoning and text else "") + text
        if whole == self._written or (self._written.startswith(whole) and not complete):
            return
        begin = len(self._written)
        if not whole.startswith(self._written):
            begin = 0
            if self.is_mid_line:
                self._write("\n")
        thought, said = whole[begin : len(reasoning)], whole[max(begin, len(reasoning)) :]
        if thought:
            self._write_reasoning(printable(thought, keep="\n\t"))
        if said:
            self._write(printable(said, keep="\n\t"))
        self._written = whole
