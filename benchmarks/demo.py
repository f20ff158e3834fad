"""An agent that remembers after kill -9: `make demo`.

Tells agent "marco" facts inside about 4,000 tokens of dialogue and asks for one (cold), asks again (hot), kills worker
and store, asks again (warm), and asks agent "danny", who was never told. Exit status 1 if something is wrong.
"""

import asyncio
import random
import sys
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from agentmem.v1 import types_pb2
from agentmem.words import hit
from benchmarks.demo_model.filler import ACKNOWLEDGEMENT, count_tokens, filler_text
from benchmarks.demo_model.world import COLOUR, NUMBER, PLACE, Fact, unknown_answer
from benchmarks.live import LiveStack, running
from benchmarks.turns import Turn, chat

TOKENS = 4000
BOAT = Fact(COLOUR, "boat", "green")
KEY = Fact(PLACE, "key", "cellar")
LOCKER = Fact(NUMBER, "locker", "417")
QUESTIONS = {fact: fact.kind.questions[0].format(e=fact.entity) for fact in (BOAT, KEY, LOCKER)}


@dataclass(frozen=True)
class Step:
    label: str
    agent: str
    question: str
    expected: str
    answer: Turn
    tier: str
    reused_tokens: int

    def mistakes(self) -> list[str]:
        found = []
        if self.answer.text.strip() != self.expected:
            found.append(f"{self.label}: {self.agent} said {self.answer.text!r} instead of {self.expected!r}")
        if (self.answer.tier, self.answer.reused) != (self.tier, self.reused_tokens):
            found.append(
                f"{self.label}: reused {self.answer.reused} tokens ({self.answer.tier}) "
                f"instead of {self.reused_tokens} ({self.tier})"
            )
        return found


def dialogue(seed: int = 1, tokens: int = TOKENS) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    messages = [("system", "You are marco.")]
    tellings = [
        (f"{BOAT.answer}", BOAT),
        (f"lena: Remember that {KEY.clause}.", KEY),
        (f"omar: {LOCKER.answer}", LOCKER),
    ]
    per_fact = tokens // len(tellings)
    for number, (text, fact) in enumerate(tellings, 1):
        messages += [("user", text), ("assistant", f"Noted, {fact.clause}.")]
        while sum(count_tokens(content) + 5 for _, content in messages) < number * per_fact - 150:
            messages += [("user", filler_text(rng, rng.randint(4, 16))), ("assistant", ACKNOWLEDGEMENT)]
    return messages


async def tell_and_ask(stack: LiveStack, console: Console) -> list[Step]:
    steps = []
    messages = [*dialogue(), ("user", QUESTIONS[BOAT])]
    console.print(f"marco is told 3 facts in {len(messages)} messages, and asked: {QUESTIONS[BOAT]}")
    cold = await stack.ask("marco", messages=chat(messages))
    steps.append(Step("cold", "marco", QUESTIONS[BOAT], BOAT.answer, cold, "none", 0))
    ledger = (await stack.agent("marco")).tokens
    hot = await stack.ask("marco", append=types_pb2.Append(messages=chat([("user", QUESTIONS[KEY])])))
    steps.append(Step("hot", "marco", QUESTIONS[KEY], KEY.answer, hot, "hot", ledger))
    described = await stack.on_disk("marco")
    console.print("kill -9 worker store …", end=" ")
    seconds = await stack.kill("worker", "store")
    console.print(f"both serve again after {seconds:.1f} s")
    warm = await stack.ask("marco", append=types_pb2.Append(messages=chat([("user", QUESTIONS[LOCKER])])))
    steps.append(Step("warm", "marco", QUESTIONS[LOCKER], LOCKER.answer, warm, "warm", described.tokens))
    stranger = await stack.ask("danny", messages=chat([("system", "You are danny."), ("user", QUESTIONS[LOCKER])]))
    never = unknown_answer(LOCKER.kind, LOCKER.entity)
    steps.append(Step("cold", "danny", QUESTIONS[LOCKER], never, stranger, "none", 0))
    return steps


async def show(stack: LiveStack, console: Console, steps: list[Step]) -> None:
    table = Table(title="Time to first token, seen by the client")
    for column in ("", "agent", "question", "answer", "match", "tier", "cache hit", "TTFT", ""):
        table.add_column(column, justify="right" if column in ("cache hit", "TTFT") else "left")
    cold = steps[0].answer.first
    for step in steps:
        answer = step.answer
        ratio = cold / answer.first
        table.add_row(
            *(step.label, step.agent, step.question, answer.text, answer.match, answer.tier),
            hit(answer.reused, answer.prompt),
            f"{answer.first * 1000:.0f} ms",
            f"{ratio:.0f}x" if step.agent == "marco" and step.label != "cold" else "",
        )
    console.print(table)
    marco, model = await stack.on_disk("marco"), await stack.describe_model()
    fp16 = marco.tokens * model.full_layers * model.kv_heads * (model.k_head_dim + model.v_head_dim) * 2
    console.print(
        f"marco on disk: {marco.warm_bytes / 1e6:.1f} MB for {marco.tokens} tokens "
        f"({marco.warm_bytes / fp16:.2f} of the {fp16 / 1e6:.1f} MB that fp16 would take; "
        f"{model.kv_bits} bits, {model.dtype} scales)"
    )


async def main() -> int:
    console = Console(width=max(150, Console().width)) if not sys.stdout.isatty() else Console()
    console.print("Starting store, worker and gateway with the demo model …")
    async with running(show=True) as stack:
        steps = await tell_and_ask(stack, console)
        await show(stack, console, steps)
    mistakes = [mistake for step in steps for mistake in step.mistakes()]
    for mistake in mistakes:
        console.print(f"WRONG  {mistake}", style="bold red")
    if not mistakes:
        console.print("marco remembered after kill -9, danny never knew.", style="bold green")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
