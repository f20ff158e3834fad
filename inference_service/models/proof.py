"""Proofs with a model's weights: kernels, rows of several sequences, riding prompts, and traced passes are right here.
Chooses how attention and products of rows are computed.

A model's code may be right for one sequence and wrong for two (masks that broadcast over another axis, offsets taken
for numbers): such are computed alone. Engine thread.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx

from agentmem.errors import FailedPrecondition
from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.process import logs
from inference_service.engine.attention import PathReport
from inference_service.engine.attention.self_test import (
    few_queries_error,
    many_queries_error,
    one_query_error,
    packing_error,
    unpacking_error,
)
from inference_service.engine.device import on_cpu, on_cuda, on_metal
from inference_service.engine.geometry import Geometry
from inference_service.engine.lost_device import end_if_lost
from inference_service.engine.network import Network
from inference_service.engine.paged.alone import new_caches
from inference_service.engine.paged.kernels import Kernels
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.paged.store import KVStore
from inference_service.engine.pausing import compute, let_others_run
from inference_service.engine.product_speeds import ProductSpeeds, choose
from inference_service.engine.quantization import BALANCED, PLAIN
from inference_service.families.networks import ALONE
from inference_service.models.opening import ModelInfo

log = logging.getLogger(__name__)

Trial: TypeAlias = tuple[mx.array, mx.array]
"""Logits found and wanted."""
Judge: TypeAlias = Callable[[mx.array], mx.array]
"""A number for all positions' errors, which are relative to the largest logit."""

_TEXT = tuple(1 + 7 * at % 31 for at in range(48))
"""In every vocabulary."""
_LAST, _COMPARED = 3, 8
"""The last tokens differ in another prompt; logits of those before must not."""
_ROWS = (_TEXT[:32], _TEXT[32:35])
"""Prompts of very different lengths."""
_NEXT = ((2, 4), (9, 1), (5, 3))
_RIDING = tuple(_TEXT[3:13])
_LONG_ROWS = ((_TEXT * 6)[:252], _TEXT[32:35])
_STEPS = tuple((2 + at, 4 + 3 * at) for at in range(8))
"""The same of traced passes, in the middle of which one goes on in a second block."""
_MOST_ERROR, _MOST_ERROR_ON_CPU = 0.05, {mx.float32: 0.01}
"""Relative to the largest logit, in 16 bits. Rows that see another's or later tokens are off by 0.1 and more; experts
that rounding changes too, but not at each step.
"""


class Proof(NamedTuple):
    """`whole` unless a trial could not run."""

    info: ModelInfo
    paths: tuple[PathReport, ...]
    kernels: Kernels
    whole: bool = True


class Raised(str):
    """The problem of a trial that could not run."""

    __slots__ = ()


def prove(info: ModelInfo, network: Network, speeds: ProductSpeeds | None) -> Proof:
    """Run attention's self-test, which chooses kernels; `speeds` None leaves products as they are.

    If its scheme fails here, the model becomes `plain`. `network.rows_together` and `network.rides` say afterwards what
    a pass may have. Raises FailedPrecondition if no scheme is right, and for a model whose tokens see later ones.
    """
    info, reports, kernels = _attention_of(info)
    reports = [*reports, *fastest_products(network, info.geometry, speeds)]
    if problem := order_problem(network, info.geometry):
        raise FailedPrecondition(f"model {info.model_id!r} cannot go on from what it has computed: {problem}")
    problems = [problem := rows_problem(network, info.geometry, kernels)]
    network.rows_together = not problem
    reports = _noted(info, reports, "decode", "sequences one by one, because together", problem)
    if not info.geometry.in_order:
        problems.append(problem := riding_problem(network, info.geometry, kernels))
        reports = _noted(info, reports, "prefill", "prompts one by one, because as rows", problem)
    network.rides = not (info.geometry.in_order or problem)
    if on_cuda():
        problems.append(problem := traced_problem(network, info.geometry, kernels._replace(traced=True)))
        kernels = kernels._replace(traced=not problem)
        reports = _noted(info, reports, "decode", "passes are not traced, because", problem)
    return Proof(info, tuple(reports), kernels, not any(isinstance(each, Raised) for each in problems))


def unproved(info: ModelInfo, network: Network) -> Proof:
    """Run attention's self-test alone, on a GPU without the kernels of steps, which compile for half a minute.

    Sequences and prompts are computed one by one, which is always right.
    """
    info, reports, kernels = _attention_of(info, steps=False)
    network.rows_together = network.rides = False
    return Proof(info, tuple(reports), kernels, whole=False)


def _attention_of(info: ModelInfo, *, steps: bool = True) -> tuple[ModelInfo, list[PathReport], Kernels]:
    """Raises FailedPrecondition if no scheme is right."""
    try:
        return info, *attention_paths(info.geometry, steps=steps)
    except FailedPrecondition as error:
        end_if_lost(error)
        if info.geometry.format.scheme == PLAIN:
            raise
        info = info.with_format(replace(info.geometry.format, scheme=PLAIN))
        reports, kernels = attention_paths(info.geometry, steps=steps)
        message = "K and V are quantized as they are, which costs quality: transforming them fails on this backend"
        logs.event(log, message, logging.WARNING, model=info.model_id, error=error.message)
        return info, reports, kernels


def _noted(info: ModelInfo, reports: list[PathReport], phase: str, way: str, problem: str) -> list[PathReport]:
    """Log a slower way, and note it on the phase's first report."""
    if not problem:
        return reports
    note = f"{way} {problem}"
    logs.event(log, "the model is computed in a slower way", logging.WARNING, model=info.model_id, way=note)
    at = next((at for at, report in enumerate(reports) if report.phase == phase), len(reports))
    found = reports[at] if at < len(reports) else PathReport(phase, "states", 0.0)
    noted = replace(found, note="; ".join(filter(None, [note, found.note])))
    return [*reports[:at], noted, *reports[at + 1 :]]


def fastest_products(network: Network, geometry: Geometry, speeds: ProductSpeeds | None) -> list[PathReport]:
    """Choose products' ways; on Metal nothing was measured."""
    return choose(network.model, geometry.dtype, speeds) if speeds and not on_metal() else []


def check_runs(info: ModelInfo, network: Network) -> None:
    """Raises FailedPrecondition for a network that this backend cannot compute."""
    caches = new_caches(info.geometry)
    try:
        for tokens in ([[0, 0]], [[0]]):
            mx.eval(_run(network, tokens, caches))
    except (RuntimeError, ValueError) as error:
        raise FailedPrecondition(f"model {info.model_id!r} cannot run on this backend: {error}") from error


def attention_paths(geometry: Geometry, *, steps: bool = True) -> tuple[list[PathReport], Kernels]:
    """Compare packing and attention with plain ones for this geometry, and choose kernels; `steps` False: without those
    of steps.

    Raises FailedPrecondition if K and V cannot be packed, written or read correctly.
    """
    if not geometry.groups:
        return [], Kernels()
    try:
        packing_error(geometry)
    except (RuntimeError, ValueError) as failure:
        raise FailedPrecondition(f"K and V cannot be packed on this backend: {failure}") from failure
    if not on_cuda():
        note = "K and V are unpacked once"
        return [PathReport(phase, "arrays", 0.0, note) for phase in ("prefill", "decode")], Kernels()
    let_others_run()
    unpacked = unpacking_error(geometry)
    let_others_run()
    if geometry.format.scheme == BALANCED:
        unpacked = max(unpacked, many_queries_error(geometry))
    reports = [PathReport("prefill", "unpacked", unpacked, "a layer's K and V, for each chunk")]
    if geometry.shows_arrays:
        return [*reports, PathReport("decode", "unpacked", unpacked, "the model's own attention")], Kernels()
    found: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, test in {"one": one_query_error, "few": few_queries_error}.items() if steps else ():
        let_others_run()
        try:
            found[name] = test(geometry)
        except (RuntimeError, ValueError, FailedPrecondition) as failure:
            end_if_lost(failure)
            failed[name] = str(failure)
    if "few" in found:
        reports.append(PathReport("prefill", "packed", found["few"], "a few queries"))
    decode = (
        PathReport("decode", "packed", found["one"]) if "one" in found else PathReport("decode", "unpacked", unpacked)
    )
    reports.append(replace(decode, note="; ".join(failed.values())))
    return reports, Kernels(one="one" in found, few="few" in found)


class _Sequences:
    """Sequences after prompts, in an own pool."""

    def __init__(
        self, network: Network, geometry: Geometry, kernels: Kernels, prompts: Sequence[Sequence[int]]
    ) -> None:
        self._network = network
        blocks = [-(-(len(prompt) + 2 * len(_TEXT)) // BLOCK_TOKENS) for prompt in prompts]
        pieces = 2 * geometry.checkpoint_pieces
        self._store = KVStore(geometry, sum(blocks), pieces * len(prompts), kernels=kernels)
        if kernels.traced:
            self._store.trace(network.computed)
        self.sequences = [
            self._store.sequence(range(sum(blocks[:at]), sum(blocks[: at + 1])), range(pieces * at, pieces * (at + 1)))
            for at in range(len(prompts))
        ]
        for sequence, prompt in zip(self.sequences, prompts, strict=True):
            self.run([(sequence, prompt)])

    @property
    def traced(self) -> bool:
        return self._store.traces is not None

    def run(self, pieces: Sequence[tuple[KVSequence, Sequence[int]]], *, rows: bool | None = None) -> mx.array:
        """Compute logits [tokens, vocabulary]."""
        of = Pass([Piece(sequence, len(tokens)) for sequence, tokens in pieces], rows=rows)
        ids = mx.array([token for _, tokens in pieces for token in tokens], dtype=mx.uint32)
        logits, written = self._store.compute(self._network, of, ids)
        compute([logits, written.state])
        written.put()
        return logits

    def decoded(self, columns: Sequence[Sequence[int]]) -> mx.array:
        """Return logits [sequences, steps, vocabulary]."""
        steps = [
            self.run([(s, [token]) for s, token in zip(self.sequences, tokens, strict=True)], rows=True)
            for tokens in columns
        ]
        return mx.stack(steps, axis=1)


def _problem(trials: Callable[[], Iterable[Trial]], geometry: Geometry, judge: Judge) -> str:
    """Return how far logits are from those wanted; "" for rounding."""
    most = _MOST_ERROR_ON_CPU.get(geometry.dtype, _MOST_ERROR) if on_cpu() else _MOST_ERROR
    try:
        error = _error(trials(), judge)
    except (RuntimeError, ValueError, TypeError) as raised:
        end_if_lost(raised)
        return Raised(raised)
    return f"logits differ by {error:.2g} of the largest" if error > most else ""


def _error(trials: Iterable[Trial], judge: Judge) -> float:
    """Return how far logits [rows, positions, vocabulary] are from those wanted, in any trial."""
    error = 0.0
    for found, wanted in trials:
        errors = mx.abs(found - wanted).max(axis=(0, 2)) / mx.abs(wanted).max()
        off: float = judge(errors).item()  # type: ignore[assignment]
        error = max(error, math.inf if math.isnan(off) else off)
    return error


def traced_problem(network: Network, geometry: Geometry, kernels: Kernels) -> str:
    """Most steps must agree: rounding can change experts."""
    if geometry.groups and not kernels.one:
        return "layers attend over arrays, which are others for each pass"

    def trials() -> Iterator[Trial]:
        prompts = _LONG_ROWS if network.rows_together else _LONG_ROWS[:1]
        columns = [tokens[: len(prompts)] for tokens in _STEPS]
        one, other = (_Sequences(network, geometry, kernels._replace(traced=each), prompts) for each in (True, False))
        yield one.decoded(columns), other.decoded(columns)
        if network.rides:
            found, wanted = (each.run(_riding(each.sequences), rows=True)[None] for each in (one, other))
            yield found, wanted
        if not one.traced:
            raise ValueError("they cannot be traced")

    return _problem(trials, geometry, _typical)


def order_problem(network: Network, geometry: Geometry) -> str:
    """Compare a prompt with one of other last tokens: equal lengths round alike."""
    end = len(_TEXT) - _LAST

    def before(tokens: Sequence[int]) -> mx.array:
        return _run(network, [tokens], new_caches(geometry))[:, end - _COMPARED : end]

    trial = before(_TEXT), before((*_TEXT[:end], *_TEXT[:_LAST]))
    problem = _problem(lambda: [trial], geometry, _least)
    return problem and f"its tokens see later ones, and {problem}"


def rows_problem(network: Network, geometry: Geometry, kernels: Kernels) -> str:
    """Compare two sequences in one pass with each alone."""

    def trials() -> Iterator[Trial]:
        alone = [
            _Sequences(network, geometry, kernels, [prompt]).decoded([[tokens[at]] for tokens in _NEXT])
            for at, prompt in enumerate(_ROWS)
        ]
        yield _Sequences(network, geometry, kernels, _ROWS).decoded(_NEXT), mx.concatenate(alone)

    return ALONE.get(type(network.model).__module__) or _problem(trials, geometry, _least)


def riding_problem(network: Network, geometry: Geometry, kernels: Kernels) -> str:
    """Compare tokens as rows of a pass with a chunk."""
    others = _ROWS[1:] if network.rows_together else ()

    def trials() -> Iterator[Trial]:
        together = _Sequences(network, geometry, kernels, [_ROWS[0], *others])
        alone = _Sequences(network, geometry, kernels, _ROWS[:1])
        found = together.run(_riding(together.sequences), rows=True)[len(others) :]
        yield found[None], alone.run([(alone.sequences[0], _RIDING)])[None]

    return _problem(trials, geometry, _least)


def _riding(sequences: Sequence[KVSequence]) -> list[tuple[KVSequence, Sequence[int]]]:
    one, *rest = sequences
    return [*((other, _RIDING[:1]) for other in rest), (one, _RIDING)]


def _run(network: Network, rows: Sequence[Sequence[int]], caches: Sequence[Any]) -> mx.array:
    """Run layer by layer, with pauses; return lazy logits."""
    logits = network(mx.array([list(row) for row in rows]), cache=caches)
    compute(cache.state for cache in caches)
    return logits


def _least(errors: mx.array) -> mx.array:
    return errors.min()


def _typical(errors: mx.array) -> mx.array:
    """Return the median, or infinity for any NaN."""
    return mx.sort(mx.where(mx.isnan(errors).any(), mx.inf, errors))[errors.size // 2]
