"""Proofs with a model's weights: attention, rows of several sequences, riding prompts, and traced passes are right on
this backend. Chooses how attention and products of rows are computed.

A model's code may be right for one sequence and wrong for two (masks that broadcast over another axis, offsets taken
for numbers); such sequences are computed alone. Engine thread.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import mlx.core as mx

from agentmem.errors import FailedPrecondition
from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.process import logs
from inference_service.engine.attention import PathReport
from inference_service.engine.attention.self_test import (
    arrays_error,
    encoding_error,
    few_queries_error,
    many_queries_error,
    one_query_error,
    unpacking_error,
)
from inference_service.engine.cuda_kernel import available
from inference_service.engine.device import has_own_memory, on_cpu
from inference_service.engine.geometry import Geometry
from inference_service.engine.network import Network
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.paged.store import Kernels, KVStore
from inference_service.engine.pausing import compute, work_clock
from inference_service.engine.product_speeds import ProductSpeeds, choose
from inference_service.engine.quantization import BALANCED, PLAIN
from inference_service.families.networks import ALONE
from inference_service.models.opening import ModelInfo

log = logging.getLogger(__name__)

_TEXT = tuple(1 + 7 * at % 31 for at in range(48))
"""Token ids of a prompt, in every vocabulary."""
_LAST, _COMPARED = 3, 8
"""The last tokens that another prompt changes, and those before whose logits must stay."""
_ROWS = (_TEXT[:32], _TEXT[32:35])
"""Two prompts of very different lengths."""
_NEXT = ((2, 4), (9, 1), (5, 3))
"""Their next tokens, by step."""
_RIDING = tuple(_TEXT[3:13])
_LONG_ROWS = ((_TEXT * 6)[:252], _TEXT[32:35])
_STEPS = tuple((2 + at, 4 + 3 * at) for at in range(8))
"""The same of traced passes; one sequence begins a second block."""
_MOST_ERROR, _MOST_ERROR_ON_CPU = 0.05, {mx.float32: 0.01}
"""Shares of the largest logit, in 16 bits. Rows that see wrong tokens are off by 0.1 and more; so are experts that
rounding changes, but not at each step."""

_SLOW_SECONDS = 10.0
"""A slower CPU, for two short prompts, computes prompts one by one, and proves rows by one step."""


class Speeds(NamedTuple):
    """Measured speeds."""

    products: ProductSpeeds

    @classmethod
    def kept_in(cls, directory: Path) -> Self:
        return cls(ProductSpeeds(directory / "products.json"))


def prove(
    info: ModelInfo, network: Network, speeds: Speeds | None
) -> tuple[ModelInfo, tuple[PathReport, ...], Kernels]:
    """Run the network in both phases, alone and in rows, and attention's self-test, which chooses kernels.

    `speeds` None takes products as given. If its scheme fails here, the model returns with `plain`. Sets
    `network.rows_together` and `network.rides`. Raises FailedPrecondition if no scheme is right, or tokens see later
    ones.
    """
    try:
        reports, kernels = _proved(info, network)
    except FailedPrecondition as error:
        geometry = info.geometry
        if geometry.format.scheme == PLAIN:
            raise
        info = info.with_format(replace(geometry.format, scheme=PLAIN))
        reports, kernels = _proved(info, network)
        message = "K and V are quantized as they are, which costs quality: transforming them fails on this backend"
        logs.event(log, message, logging.WARNING, model=info.model_id, error=error.message)
    reports = [*reports, *fastest_products(network, info.geometry, speeds)]
    began = work_clock()
    if problem := order_problem(network, info.geometry):
        raise FailedPrecondition(f"model {info.model_id!r} cannot go on from what it has computed: {problem}")
    slow = on_cpu() and work_clock() - began > _SLOW_SECONDS
    problem = rows_problem(network, info.geometry, kernels, _NEXT[:1] if slow else _NEXT)
    network.rows_together = not problem
    if problem:
        message = "sequences of the model are decoded one by one: together they are not what each is alone"
        logs.event(log, message, logging.WARNING, model=info.model_id, error=problem)
        reports = _noted(reports, "decode", f"sequences one by one, because together {problem}")
    network.rides = not (slow or info.geometry.states)
    if slow:
        message = "prompts are computed one by one: this machine is too slow for the model to prove more"
        logs.event(log, message, model=info.model_id)
        reports = _noted(reports, "prefill", "prompts one by one, because this machine is slow for the model")
    if network.rides and (problem := riding_problem(network, info.geometry, kernels)):
        network.rides = False
        message = "prompts are computed one by one: as rows of a pass they are not what each is alone"
        logs.event(log, message, logging.WARNING, model=info.model_id, error=problem)
        reports = _noted(reports, "prefill", f"prompts one by one, because as rows {problem}")
    if available():
        kernels = kernels._replace(traced=True)
        if problem := traced_problem(network, info.geometry, kernels):
            kernels = kernels._replace(traced=False)
            message = "passes are not traced, and take more of the processor's time"
            logs.event(log, message, logging.WARNING, model=info.model_id, error=problem)
            reports = _noted(reports, "decode", f"passes are not traced, because {problem}")
    return info, tuple(reports), kernels


def _noted(reports: Sequence[PathReport], phase: str, note: str) -> list[PathReport]:
    """Add a note to the first report of a phase, or a report for it."""
    at = next((at for at, report in enumerate(reports) if report.phase == phase), None)
    if at is None:
        return [*reports, PathReport(phase, "states", 0.0, note)]
    noted = replace(reports[at], note="; ".join(filter(None, [note, reports[at].note])))
    return [*reports[:at], noted, *reports[at + 1 :]]


def fastest_products(network: Network, geometry: Geometry, speeds: Speeds | None) -> list[PathReport]:
    """Choose how products with quantized weights are computed, and report what is not as given. On Metal nothing was
    measured, so nothing is chosen.
    """
    return choose(network.model, geometry.dtype, speeds.products) if speeds and (on_cpu() or available()) else []


def _proved(info: ModelInfo, network: Network) -> tuple[list[PathReport], Kernels]:
    geometry = info.geometry
    caches = geometry.new_caches()
    try:
        for tokens in ([[0, 0]], [[0]]):
            mx.eval(_run(network, tokens, caches))
    except (RuntimeError, ValueError) as error:
        raise FailedPrecondition(f"model {info.model_id!r} cannot run on this backend: {error}") from error
    return attention_paths(geometry)


def attention_paths(geometry: Geometry) -> tuple[list[PathReport], Kernels]:
    """Compare attention with plain attention for this geometry, and choose kernels.

    Raises FailedPrecondition if K and V cannot be packed correctly.
    """
    if not geometry.groups:
        return [], Kernels()
    encoding_error(geometry)
    if not has_own_memory():
        error = arrays_error(geometry)
        note = "K and V are unpacked once"
        return [PathReport(phase, "arrays", error, note) for phase in ("prefill", "decode")], Kernels()
    unpacked = unpacking_error(geometry)
    if geometry.format.scheme == BALANCED:
        unpacked = max(unpacked, many_queries_error(geometry))
    reports = [PathReport("prefill", "unpacked", unpacked, "a layer's K and V, for each chunk")]
    if geometry.shows_arrays:
        return [*reports, PathReport("decode", "unpacked", unpacked, "the model's own attention")], Kernels()
    found: dict[str, float] = {}
    failed: dict[str, str] = {}
    tests: dict[str, Callable[[Geometry], float]] = {"one": one_query_error, "few": few_queries_error}
    for name, test in tests.items():
        try:
            found[name] = test(geometry)
        except (RuntimeError, ValueError, FailedPrecondition) as failure:
            failed[name] = str(failure)
    if "few" in found:
        reports.append(PathReport("prefill", "packed", found["few"], "a few queries"))
    decode = (
        PathReport("decode", "packed", found["one"]) if "one" in found else PathReport("decode", "unpacked", unpacked)
    )
    reports.append(replace(decode, note="; ".join(failed.values())))
    return reports, Kernels(one="one" in found, few="few" in found)


class _Trial:
    """Sequences after prompts, in a pool of their own."""

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
        """Return whether passes are still traced."""
        return self._store.traces is not None

    def run(self, pieces: Sequence[tuple[KVSequence, Sequence[int]]], *, rows: bool | None = None) -> mx.array:
        """Return logits [tokens, vocabulary] of sequences' next tokens, evaluated."""
        of = Pass([Piece(sequence, len(tokens)) for sequence, tokens in pieces], rows=rows)
        ids = mx.array([token for _, tokens in pieces for token in tokens], dtype=mx.uint32)
        logits, written = self._store.compute(self._network, of, ids)
        compute([logits, written.state])
        written.put()
        return logits

    def decoded(self, columns: Sequence[Sequence[int]]) -> mx.array:
        """Return logits [sequences, steps, vocabulary] after each token of all sequences."""
        steps = [
            self.run([(s, [token]) for s, token in zip(self.sequences, tokens, strict=True)], rows=True)
            for tokens in columns
        ]
        return mx.stack(steps, axis=1)


def traced_problem(network: Network, geometry: Geometry, kernels: Kernels) -> str:
    """Return how traced passes differ from untraced ones, or "". Most steps must agree: rounding can change experts."""
    if geometry.groups and not kernels.one:
        return "layers attend over arrays, which are others for each pass"
    prompts = _LONG_ROWS if network.rows_together else _LONG_ROWS[:1]
    columns = [tokens[: len(prompts)] for tokens in _STEPS]
    try:
        trials = [_Trial(network, geometry, kernels._replace(traced=traced), prompts) for traced in (True, False)]
        found, wanted = (trial.decoded(columns) for trial in trials)
        error = _typical(found, wanted)
        if network.rides:
            found, wanted = (trial.run(_riding(trial.sequences), rows=True)[None] for trial in trials)
            error = max(error, _typical(found, wanted))
        if not trials[0].traced:
            return "they cannot be traced"
    except (RuntimeError, ValueError, TypeError) as raised:
        return str(raised)
    return "" if error <= _most_error(geometry) else _differ(error)


def order_problem(network: Network, geometry: Geometry) -> str:
    """Return how a prompt's tokens differ if only later ones change, or "". Equal lengths round alike."""
    end = len(_TEXT) - _LAST
    one, other = (
        _run(network, [tokens], geometry.new_caches())[:, end - _COMPARED : end]
        for tokens in (_TEXT, (*_TEXT[:end], *_TEXT[:_LAST]))
    )
    error = _error(one, other, geometry)
    return f"its tokens see later ones, and {_differ(error)}" if error else ""


def rows_problem(
    network: Network, geometry: Geometry, kernels: Kernels, steps: Sequence[tuple[int, ...]] = _NEXT
) -> str:
    """Return how two sequences in one pass differ from each alone, or "". `steps` are both's decoded tokens."""
    if wrong := ALONE.get(type(network.model).__module__):
        return wrong
    try:
        found = _Trial(network, geometry, kernels, _ROWS).decoded(steps)
        alone = [
            _Trial(network, geometry, kernels, [prompt]).decoded([[tokens[at]] for tokens in steps])
            for at, prompt in enumerate(_ROWS)
        ]
    except (RuntimeError, ValueError, TypeError) as raised:
        return str(raised)
    return _differ(_error(found, mx.concatenate(alone), geometry))


def riding_problem(network: Network, geometry: Geometry, kernels: Kernels) -> str:
    """Return how a sequence's tokens as rows of a pass differ from a chunk, or "", with another sequence's if rows may
    be mixed.
    """
    others = _ROWS[1:] if network.rows_together else ()
    try:
        together = _Trial(network, geometry, kernels, [_ROWS[0], *others])
        found = together.run(_riding(together.sequences), rows=True)[len(others) :]
        alone = _Trial(network, geometry, kernels, _ROWS[:1])
        wanted = alone.run([(alone.sequences[0], _RIDING)])
    except (RuntimeError, ValueError, TypeError) as raised:
        return str(raised)
    return _differ(_error(found[None], wanted[None], geometry))


def _riding(sequences: Sequence[KVSequence]) -> list[tuple[KVSequence, Sequence[int]]]:
    """Return a pass in which the first sequence's prompt rides with a token of each other."""
    one, *rest = sequences
    return [*((other, _RIDING[:1]) for other in rest), (one, _RIDING)]


def _differ(error: float) -> str:
    return f"logits differ by {error:.2g} of the largest" if error else ""


def _run(network: Network, rows: Sequence[Sequence[int]], caches: Sequence[Any]) -> mx.array:
    """Compute rows layer by layer, with pauses; return lazy logits."""
    logits = network(mx.array([list(row) for row in rows]), cache=caches)
    compute(cache.state for cache in caches)
    return logits


def _error(found: mx.array, wanted: mx.array, geometry: Geometry) -> float:
    """Return the least error of any position [rows, positions, …], relative to the largest logit; 0 if it is rounding,
    infinite for NaN.
    """
    error: float = _errors(found, wanted).min().item()  # type: ignore[assignment]
    return 0.0 if error <= _most_error(geometry) else math.inf if math.isnan(error) else error


def _typical(found: mx.array, wanted: mx.array) -> float:
    """Return the median error over positions [rows, positions, …], relative to the largest logit; infinite for NaN."""
    errors = _errors(found, wanted)
    by_position = mx.sort(mx.where(mx.isnan(errors).any(), mx.inf, errors))
    error: float = by_position[by_position.size // 2].item()  # type: ignore[assignment]
    return error


def _errors(found: mx.array, wanted: mx.array) -> mx.array:
    """Return each position's largest error [rows, positions, …], relative to the largest logit."""
    return mx.abs(found - wanted).max(axis=(0, 2)) / mx.abs(wanted).max()


def _most_error(geometry: Geometry) -> float:
    return _MOST_ERROR_ON_CPU.get(geometry.dtype, _MOST_ERROR) if on_cpu() else _MOST_ERROR
