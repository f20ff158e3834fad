"""Conversations through the real gateway, whose reports of what was reused must be what the planner says."""

from random import Random

from agentmem.kv.ledger import Ledger
from benchmarks.live import running
from benchmarks.prefix import passages
from benchmarks.prefix.contestants import by_text
from benchmarks.prefix.conversations import Step
from benchmarks.prefix.vocabularies import demo
from benchmarks.turns import chat
from inference_service.domain import MessagesInput

_MOVES = ("go on", "regenerate", "edit", "go on")


async def replay(conversations: int) -> list[dict[str, int | str]]:
    """Five turns each with the demo model's own answers; each turn's prompt and reused tokens.

    Raises RuntimeError where the gateway reports others than the planner does for the same ledger.
    """
    vocabulary, planned = demo(), by_text(0.0)
    found: list[dict[str, int | str]] = []
    async with running() as stack:
        for number in range(conversations):
            random, ledger = Random(f"replay-{number}"), Ledger()
            messages = [("system", passages.message(random, 1)), ("user", passages.message(random, 1))]
            for move in ("begin", *_MOVES):
                messages = _moved(messages, move, random)
                as_input = MessagesInput(tuple({"role": role, "content": text} for role, text in messages))
                prompt = vocabulary.plain.messages(as_input, generation_prompt=True, parse_special=False)
                kept, sequence = planned(vocabulary, vocabulary.plain, ledger, Step(prompt, raw=False, generated=()))
                turn = await stack.ask(f"agent-{number}", max_tokens=24, messages=chat(messages))
                if (turn.prompt, turn.reused) != (len(sequence), kept):
                    raise RuntimeError(f"{move}: the planner keeps {kept} of {len(sequence)} tokens, and {turn} came")
                remembered = (*sequence, *turn.token_ids)
                ledger = Ledger().followed_by(
                    remembered, vocabulary.tokenizer.pieces(remembered), vocabulary.tokenizer.hash
                )
                messages.append(("assistant", turn.text))
                found.append({"move": move, "match": turn.match, "prompt": turn.prompt, "reused": turn.reused})
    return found


def _moved(messages: list[tuple[str, str]], move: str, random: Random) -> list[tuple[str, str]]:
    """The messages of the next turn."""
    if move == "regenerate":
        return messages[:-1]
    if move == "edit":
        text = messages[-2][1]
        return [*messages[:-2], ("user", f"{text[: len(text) // 2]} {passages.passage(random)[:40]}")]
    return [*messages, ("user", passages.message(random, 1))] if move == "go on" else messages
