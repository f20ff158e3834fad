"""Tokens saved by matching prompts by text, against matching by tokens, and a least ratio of 0 against 0.8.

    agentmem bench prefix [--conversations 16] [--rates 0 0.002] [--replay 2]

Each conversation is played turn by turn by three contestants, each with a ledger of its own. "text" is the worker's own
planner; "text, 0.8" the same with the paper's least ratio of what is shared; "tokens" what peers do: tokenize the whole
prompt, and reuse what it has in common with the tokens of the last prompt and answer. All get the same text. What is
counted is how many tokens are left to compute, over the tokens that the prompt has when tokenized whole, so that nobody
gains by keeping a longer tokenization. All but the first turns of the conversations count.

The text is the interpreter's own documentation and sources, numbers and other languages, with white space at the edges;
a quarter of the answers ends at max_tokens. --rates says how likely a model writes a token as two others of the same
bytes: at 0 every answer is tokenized as the tokenizer would. Tokenizers: the demo model's, and a byte-level BPE that
splits as Llama 3's does. Every plan must decode to the prompt's bytes, or the benchmark fails. --replay plays
conversations through a running gateway as well, and fails where it reports other figures than the planner.

Confidence intervals are of 95 %, by bootstrap over conversations.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from benchmarks import options, results
from benchmarks.plots import Plot, Point
from benchmarks.prefix import vocabularies
from benchmarks.prefix.contestants import CONTESTANTS, play
from benchmarks.prefix.conversations import SCENARIOS
from benchmarks.prefix.replay import replay
from benchmarks.prefix.vocabularies import Vocabulary
from benchmarks.tables import Claim, Table

MANY = 100
_RESAMPLES = 2000
_LABELS = {"text": "match by text", "text, 0.8": "match by text, ratio of 0.8", "tokens": "match by tokens"}
Figures = dict[str, Any]


def measure(vocabulary: Vocabulary, scenario: str, rate: float, conversations: int) -> Figures:
    """One scenario: every conversation, and what they come to."""
    played = []
    for number in range(conversations):
        steps = list(SCENARIOS[scenario](vocabulary, Random(f"{scenario}-{number}"), rate))
        by_name = {name: play(vocabulary, steps, contestant) for name, contestant in CONTESTANTS.items()}
        found: Figures = {
            "prompts": next(iter(by_name.values())).prompts,
            "computed": {name: each.computed for name, each in by_name.items()},
            "sequence": {name: each.sequence for name, each in by_name.items()},
        }
        played.append(found)
    totals = [
        {"prompts": sum(each["prompts"]), **{name: sum(tokens) for name, tokens in each["computed"].items()}}
        for each in played
    ]
    return {"tokenizer": vocabulary.name, "scenario": scenario, "rate": rate, **scores(played), "conversations": totals}


def scores(played: Sequence[Mapping[str, Any]]) -> Figures:
    """Shares of the prompts' tokens that were saved, with confidence intervals, and what tokens lose against text."""
    prompts = np.array([sum(each["prompts"]) for each in played])
    computed = {name: np.array([sum(each["computed"][name]) for each in played]) for name in CONTESTANTS}
    drawn = np.random.default_rng(0).integers(len(played), size=(_RESAMPLES, len(played)))
    saved: Figures = {}
    for name, tokens in computed.items():
        resampled = 1 - tokens[drawn].sum(axis=1) / prompts[drawn].sum(axis=1)
        low, high = np.percentile(resampled, [2.5, 97.5])
        saved[name] = {"share": 1 - int(tokens.sum()) / int(prompts.sum()), "low": float(low), "high": float(high)}
    losses = [
        more - less
        for each in played
        for more, less in zip(each["computed"]["tokens"], each["computed"]["text"], strict=True)
    ]
    longer = sum(each["sequence"]["text"] for each in played) / sum(each["sequence"]["tokens"] for each in played)
    return {
        "saved": saved,
        "turns": len(losses),
        "many_lost": sum(loss > MANY for loss in losses) / len(losses),
        "lost_most": max(losses),
        "gained_most": max(0, -min(losses)),
        "sequence_longer": longer - 1,
    }


def tables(figures: Figures) -> list[Table]:
    """One row per tokenizer, rate and scenario."""
    rows = []
    for row in figures["rows"]:
        shares = [_share(row["saved"][name]) for name in CONTESTANTS]
        rows.append(
            (
                row["scenario"],
                row["tokenizer"],
                f"{row['rate']:.1%}",
                *shares,
                f"{row['many_lost']:.0%}",
                str(row["lost_most"]),
                str(row["gained_most"]),
                f"{row['sequence_longer']:.2%}",
            )
        )
    columns = ("scenario", "tokenizer", "split", "text", "text, ratio 0.8", "tokens")
    return [
        Table(
            "Share of the prompts' tokens that were not computed again",
            (*columns, f"loses > {MANY}", "most lost", "most gained", "longer"),
            rows,
            f"Loses > {MANY}: turns in which matching by tokens computes over {MANY} tokens more than matching by "
            "text, and the most that it loses and gains in one turn. Split: how likely a generated token is written as "
            "two. Longer: the last prompt's sequence under matching by text, which keeps what was generated.",
        )
    ]


def plots(figures: Figures) -> list[Plot]:
    """For each tokenizer, where most tokens are split: that is where matching by text and by tokens differ."""
    found = []
    for tokenizer in dict.fromkeys(row["tokenizer"] for row in figures["rows"]):
        its = [row for row in figures["rows"] if row["tokenizer"] == tokenizer]
        rate = max(row["rate"] for row in its)
        series = {
            _LABELS[name]: [
                Point(row["scenario"], *(row["saved"][name][part] * 100 for part in ("share", "low", "high")))
                for row in its
                if row["rate"] == rate
            ]
            for name in CONTESTANTS
        }
        title = f"Tokens of prompts not computed again: tokenizer {tokenizer}, {rate:.1%} split"
        found.append(Plot(f"saved-{tokenizer}", title, "conversations", "tokens saved (%)", series))
    return found


def _share(saved: Mapping[str, float]) -> str:
    return f"{saved['share']:.1%} ({saved['low']:.1%}–{saved['high']:.1%})"


def claims(figures: Figures) -> list[Claim]:
    """Text saves at least as much as tokens, and a ratio of 0 as one of 0.8, in every scenario at its worst."""
    found = []
    for scenario in dict.fromkeys(row["scenario"] for row in figures["rows"]):
        rows = [row["saved"] for row in figures["rows"] if row["scenario"] == scenario]
        for other in ("tokens", "text, 0.8"):
            least = min(_over(saved["text"]["share"], saved[other]["share"]) for saved in rows)
            found.append(Claim(f"{scenario}: tokens saved, text over {other}", least, 1.0, at_most=False))
    return found


def _over(share: float, other: float) -> float:
    """One over the other; both may be nothing."""
    return share / other if other else 1.0 + share


async def main(scenarios: Sequence[str], conversations: int, rates: Sequence[float], replays: int, output: str) -> int:
    """Play, print; written after each scenario; the exit status."""
    figures: Figures = {"conversations": conversations, "rows": []}
    for vocabulary in (vocabularies.demo(), vocabularies.trained()):
        for rate in rates:
            for scenario in scenarios:
                figures["rows"].append(measure(vocabulary, scenario, rate, conversations))
                results.write(output, figures)
    if replays:
        figures["replayed"] = await replay(replays)
        print(f"{len(figures['replayed'])} turns through the gateway reported what the planner says")
    return results.conclude(output, figures, tables(figures), claims(figures))


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--conversations", type=options.at_least(1), default=16, help="per scenario")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 0.002])
    parser.add_argument("--replay", type=int, default=0, help="conversations to play through a gateway, too")
    parser.add_argument("--output", default="prefix")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.scenarios, given.conversations, given.rates, given.replay, given.output)))
