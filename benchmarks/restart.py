"""Time to first token before and after a SIGKILL, by length: cold, hot and warm with 14 new tokens each.

    python -m benchmarks.restart [--lengths 1000 2000 4000] [--runs 3]

Cold is a whole prefill; hot is the next turn; warm is the next turn after worker and store were killed and are back.
All through the gateway, with the demo model, timed by the client.
"""

import argparse
import asyncio
import sys

from rich.console import Console
from rich.table import Table

from agentmem.v1 import types_pb2
from benchmarks import results
from benchmarks.demo import QUESTIONS, chat, dialogue
from benchmarks.live import LiveStack, running


async def measure(stack: LiveStack, tokens: int, run: int) -> dict[str, float]:
    """One agent of about `tokens` tokens; its figures in seconds and tokens."""
    agent = f"agent-{tokens}-{run}"
    first, second, third = QUESTIONS.values()
    cold = await stack.ask(agent, messages=chat([*dialogue(run, tokens), ("user", first)]))
    hot = await stack.ask(agent, append=types_pb2.Append(messages=chat([("user", second)])))
    described = await stack.on_disk(agent)
    back = await stack.kill("worker", "store")
    warm = await stack.ask(agent, append=types_pb2.Append(messages=chat([("user", third)])))
    if (warm.tier, warm.reused_tokens) != ("warm", described.tokens):
        raise RuntimeError(f"the restart was not warm: {warm}")
    return {
        "prompt_tokens": cold.prompt_tokens,
        "cold": cold.seconds_to_first_token,
        "hot": hot.seconds_to_first_token,
        "warm": warm.seconds_to_first_token,
        "warm_load": warm.load_seconds,
        "warm_prefill": warm.prefill_seconds,
        "bytes": described.warm_bytes,
        "back": back,
    }


async def main(lengths: list[int], runs: int) -> None:
    """Measure, print, write."""
    figures = {}
    table = Table(title="Time to first token (median), demo model")
    for column in ("tokens", "cold", "hot", "warm", "of it loading", "cold / warm", "bytes on disk"):
        table.add_column(column, justify="right")
    async with running() as stack:
        await stack.ask("warm-up", messages=chat([("user", "Hello.")]))
        for tokens in lengths:
            samples = [await measure(stack, tokens, run) for run in range(runs)]
            figures[str(tokens)] = row = {
                name: results.summary([sample[name] for sample in samples]) for name in samples[0]
            }
            table.add_row(
                f"{row['prompt_tokens']['median']:.0f}",
                *(f"{row[name]['median'] * 1000:.0f} ms" for name in ("cold", "hot", "warm", "warm_load")),
                f"{row['cold']['median'] / row['warm']['median']:.1f}x",
                f"{row['bytes']['median'] / 1e6:.2f} MB",
            )
    Console().print(table)
    command = f"python -m benchmarks.restart --lengths {' '.join(map(str, lengths))} --runs {runs}"
    Console().print(f"written to {results.write('restart', command, figures)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 2000, 4000, 7000])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    sys.exit(asyncio.run(main(arguments.lengths, arguments.runs)))
