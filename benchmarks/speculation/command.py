"""Answers that repeat what stands in the context, and prose, with and without speculation.

    agentmem bench speculation [--model NAME=DIRECTORY] [--agents 1 4 8] [--tokens 64]

One agent gets each request by itself; several together, all of one kind, or half of each. Two engines over one model,
some steps of the one and then of the other. Quotations and edits repeat code, JSON and prose; prose is greedy and
sampled. Steps of several tokens round otherwise, which may change a close choice: the table has how many tokens are the
same. Without --model it is SmolLM2-135M-Instruct; the demo model quotes nothing.
"""

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step

from agentmem.kv.blockfile import BLOCK_TOKENS
from benchmarks import results, smollm2
from benchmarks.loading import load
from benchmarks.options import at_least, parser
from benchmarks.packages import Unavailable
from benchmarks.speculation.requests import REQUESTS, Request, together
from benchmarks.tables import Table, spread
from benchmarks.user_cache import user_cache
from inference_service.domain import MessagesInput, Sampling, TokenEvent
from inference_service.engine.batching import BatchEngine
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.product_speeds import ProductSpeeds
from inference_service.engine.sampling import TokenSampler
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.pool.kv import Table as KVTable

_POOL_BYTES = 256 << 20
_SEED = 1
_SEGMENT = 8
"""Steps between which nothing waits for the device."""


class Answering:
    """Answers of agents that begin together. `seconds` are of steps after all have a first token."""

    def __init__(self, model: LoadedModel, engine: BatchEngine, requests: Sequence[Request], tokens: int) -> None:
        self.seconds = 0.0
        self._engine = engine
        self._events, self._drafts = [list[TokenEvent]() for _ in requests], list[tuple[int, int]]()
        engine.speculated = lambda *counts: self._drafts.append(counts)
        self._turns, self._releases = list[TurnJob](), list[Callable[[], None]]()
        for request, events in zip(requests, self._events, strict=True):
            how = Decoding(tokens, sampling=Sampling(temperature=request.temperature))
            prompt = _prompt(model, request)
            begin, release = _place(model, len(prompt) + tokens)
            turn = TurnJob(prompt, begin, how, events.append, threading.Event())
            turn.sampler = TokenSampler(replace(how.sampling, seed=_SEED))  # What asks for a seed is not drafted for.
            self._turns.append(turn)
            self._releases.append(release)
            engine.add(turn)
        while not all(self._events):
            engine.step()
        mx.synchronize()
        self._before = self.tokens

    @property
    def over(self) -> bool:
        return all(turn.over for turn in self._turns)

    def advance(self) -> None:
        began = time.perf_counter()
        for _ in range(_SEGMENT):
            self._engine.step()
            if self.over:
                break
        mx.synchronize()
        self.seconds += time.perf_counter() - began
        if self.over:
            while self._engine.step():  # There is KV of the last tokens to come.
                pass
            for turn, release in zip(self._turns, self._releases, strict=True):
                turn.future.result(0)
                release()

    @property
    def token_ids(self) -> list[list[int]]:
        return [[event.token_id for event in events] for events in self._events]

    @property
    def tokens(self) -> int:
        return sum(map(len, self._events))

    @property
    def rate(self) -> float:
        """Tokens per second after the first ones."""
        return (self.tokens - self._before) / self.seconds

    @property
    def counts(self) -> dict[str, int]:
        """Tokens that were not drafted, tokens of drafts, and those of them that were right."""
        drafted, accepted = (sum(column) for column in zip((0, 0), *self._drafts, strict=True))
        return {"steps": self.tokens - accepted, "drafted": drafted, "accepted": accepted}


def _place(model: LoadedModel, tokens: int) -> tuple[Callable[[], KVSequence], Callable[[], None]]:
    """Return a function that makes KV for so many tokens, and one that gives its blocks back."""
    pool, wanted = model.memory.pool, -(-tokens // BLOCK_TOKENS)
    for blocks_of, count in ((pool.full, wanted), (pool.pieces, pool.checkpoint_pieces)):
        while blocks_of.free < count and blocks_of.closed:
            blocks_of.open()
    blocks = pool.full.allocate(wanted)
    pieces = pool.pieces.allocate(pool.checkpoint_pieces)
    release = partial(pool.release, KVTable(0, tuple(blocks), 0, tuple(pieces)))
    return partial(model.arenas.started, Start(blocks, pieces)), release


def mlx_lm_rate(model: LoadedModel, request: Request, tokens: int) -> float:
    """Tokens per second of mlx-lm's own loop over the same weights, behind the first one."""
    prompt = mx.array(_prompt(model, request))
    at = [time.perf_counter() for _ in generate_step(prompt, model.engine.model.model, max_tokens=tokens)]
    return (len(at) - 1) / (at[-1] - at[0])


def _prompt(model: LoadedModel, request: Request) -> list[int]:
    chat = MessagesInput(({"role": "user", "content": request.text},))
    return model.renderer.encode(model.renderer.messages(chat, generation_prompt=True, parse_special=False))


def measure(
    model: LoadedModel, engines: tuple[BatchEngine, BatchEngine], requests: Sequence[Request], tokens: int, runs: int
) -> dict[str, Any]:
    pairs = []
    for _ in range(runs):
        plain, speculative = (Answering(model, engine, requests, tokens) for engine in engines)
        order = [plain, speculative]
        while not (plain.over and speculative.over):
            for each in order:
                if not each.over:
                    each.advance()
            order.reverse()
        pairs.append((plain, speculative))
    return {
        "agents": len(requests),
        "tokens": speculative.tokens,
        "same_tokens": sum(map(_same, plain.token_ids, speculative.token_ids)),
        "plain": results.summary([plain.rate for plain, _ in pairs]),
        "speculative": results.summary([speculative.rate for _, speculative in pairs]),
        "ratio": results.summary([speculative.rate / plain.rate for plain, speculative in pairs]),
        **speculative.counts,
    }


def _same(plain: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(plain, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(plain), len(other)))


def tables(figures: Mapping[str, Any]) -> list[Table]:
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
        "tokens a turn's step",
        "drafts right",
        "the same",
    )
    title = f"{figures['model']}, {figures['backend'].upper()}; one agent where no more are named"
    note = (
        "The same: tokens before the first that plain steps chose otherwise. Counts are the last run's. mlx-lm's own "
        f"loop over the same weights generates {spread(figures['mlx-lm'], 1)} tokens/s."
    )
    return [Table(title, columns, rows, note)]


def main(
    model: LoadedModel, requests: Sequence[Request], agents: Sequence[int], tokens: int, runs: int, output: str
) -> int:
    if not model.engine.model.rides:
        sys.exit("nothing is drafted: the model was not proved to take several tokens at once, or this CPU is too slow")
    engines = model.engine, replace(model.engine, speculative=True)
    answers: dict[str, Any] = {}
    for number in agents:
        asked = together(requests, number)
        for _, each in (next(iter(asked.values())), list(asked.values())[-1]):
            measure(model, engines, each, tokens, 1)  # What is compiled is, and steps' costs are known.
        answers |= {
            name: {"kind": kind} | measure(model, engines, each, tokens, runs) for name, (kind, each) in asked.items()
        }
    alone = [mlx_lm_rate(model, requests[-1], tokens // 2) for _ in range(runs)]
    backend, summary = results.backend(), results.summary(alone)
    figures = {"backend": backend, "model": model.model_id, "mlx-lm": summary, "answers": answers}
    return results.conclude(output, figures, tables(figures))


def loaded(name: str, directory: str) -> LoadedModel:
    kept = user_cache("benchmarks")
    hashes = ContentHashes(kept / "weights.json")
    return load(name, directory, pool_bytes=_POOL_BYTES, hashes=hashes, speeds=ProductSpeeds(kept / "products.json"))


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--model", metavar="NAME=DIRECTORY", help="another model than SmolLM2")
    options.add_argument("--agents", type=at_least(1), nargs="+", default=[1, 4, 8], help="that generate together")
    options.add_argument("--tokens", type=at_least(8), default=64, help="of each answer at most")
    options.add_argument("--runs", type=at_least(1), default=3)
    options.add_argument("--output", help="name of the file in benchmarks/results")
    arguments = options.parse_args()
    output = arguments.output or f"speculation-{results.backend()}"
    name, _, place = (arguments.model or "").partition("=")
    if not place:
        if arguments.model:
            sys.exit("--model is NAME=DIRECTORY")
        try:
            name, place = "SmolLM2-135M", str(smollm2.directory())
        except Unavailable as problem:
            sys.exit(f"SmolLM2 cannot be had: {problem}")
    sys.exit(main(loaded(name, place), REQUESTS, arguments.agents, arguments.tokens, arguments.runs, output))
