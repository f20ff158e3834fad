"""What is proved of a model once its weights are there: that it runs on this backend, with right attention, in batches,
and in steps that are compiled. And what is chosen then: how it attends, and how products of rows are computed.

A model's own code may be right for one sequence and wrong for two: masks that broadcast over another axis, offsets that
are taken for numbers. Such rows are decoded by themselves. Engine thread.
"""

import copy
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import mlx.core as mx

from agentmem.errors import FailedPrecondition
from agentmem.process import logs
from inference_service.engine.attention import FLASH_DECODING, LATENT_FLASH, AttentionBackend, PathReport, PathSpeeds
from inference_service.engine.batched_prefill import padded_caches, padded_rows
from inference_service.engine.checkpoints import keeps_checkpoints
from inference_service.engine.compiled_step import CompiledSteps
from inference_service.engine.cuda_kernel import available
from inference_service.engine.device import on_cpu
from inference_service.engine.geometry import Caches, Geometry, merged
from inference_service.engine.network import Network
from inference_service.engine.pausing import compute, work_clock
from inference_service.engine.product_speeds import ProductSpeeds, choose
from inference_service.engine.quantization import PLAIN
from inference_service.models.opening import ModelInfo

log = logging.getLogger(__name__)

_TEXT = tuple(1 + 7 * at % 31 for at in range(48))
"""Token ids of a prompt. Every vocabulary has them."""
_LAST, _COMPARED = 3, 8
"""Tokens that another prompt of the same length has otherwise, and those before them whose logits must not differ."""
_ROWS = (_TEXT[:32], _TEXT[32:35])
"""Two prompts in a batch: the second one is padded by far."""
_NEXT = ((2, 4), (9, 1), (5, 3))
"""The tokens behind them, step by step."""
_LATENT_ROWS = ((_TEXT * 2)[:72], _TEXT[32:35])
"""The same of models with latents, which attend by another path from 65 tokens on."""
_BEHIND = (list(_TEXT[3:8]), list(_TEXT[11:16]))
"""The same of one more chunk."""
_LONG_ROWS = ((_TEXT * 6)[:252], _TEXT[32:35])
_STEPS = tuple((2 + at, 4 + 3 * at) for at in range(8))
"""The same of compiled steps, at half of which buffers grow."""
_MOST_ERROR, _MOST_ERROR_ON_CPU = 0.05, {mx.float32: 0.01}
"""Of the largest logit, in 16 bits; GPUs take TF32 for products in float32 (0.02 of a random model on an H100). Rows
that see padding, another's tokens or later ones are off by 0.1 and more, a token's experts that rounding changes as
well, but not at each step."""

_SLOW_SECONDS = 10.0
"""A CPU that takes longer for two short prompts is asked for less: prompts are then computed one by one, which is right
always, and a batch is proved by one step."""

_WRONG_TOGETHER = {"mlx_lm.models.minimax_m3_vl": "its sparse attention selects blocks of slots, padding among them"}
"""What short prompts cannot show, by the modules of mlx-lm's models."""


class Speeds(NamedTuple):
    """What was measured, or will be."""

    paths: PathSpeeds
    products: ProductSpeeds

    @classmethod
    def kept_in(cls, directory: Path) -> Self:
        """Remembered in files of a directory."""
        return cls(PathSpeeds(directory / "attention.json"), ProductSpeeds(directory / "products.json"))


def prove(
    info: ModelInfo, network: Network, backend: AttentionBackend, speeds: Speeds | None, *, speculation: bool = True
) -> tuple[ModelInfo, tuple[PathReport, ...]]:
    """Run the network in both phases, alone and in a batch, and attention's self-test, which chooses decode paths.

    `backend` is the one that the network was opened with; `speeds` None takes the decode paths preferred by default,
    and products as MLX is given them.
    Without `speculation` it is not looked at whether a step may compute several tokens of a row, and none does.
    Where the scheme `rotated` fails on this backend, the model comes back with `plain`. `network.rows_together` says
    afterwards whether a batch may have several rows. Raises FailedPrecondition where no scheme is right, and for a
    model whose tokens see later ones.
    """
    try:
        reports = _proved(info, network, backend, speeds and speeds.paths)
    except FailedPrecondition as error:
        geometry = info.geometry
        if geometry.format.scheme == PLAIN:
            raise
        info = info.with_format(replace(geometry.format, scheme=PLAIN))
        reports = _proved(info, network, backend, speeds and speeds.paths)
        message = "K and V are quantized as they are, which costs quality: rotating them fails on this backend"
        logs.event(log, message, logging.WARNING, model=info.model_id, error=error.message)
    reports = (*reports, *fastest_products(network, info.geometry, speeds))
    began = work_clock()
    if problem := order_problem(network, info.geometry):
        raise FailedPrecondition(f"model {info.model_id!r} cannot go on from what it has computed: {problem}")
    slow = on_cpu() and work_clock() - began > _SLOW_SECONDS
    problem = batch_problem(network, info.geometry, _NEXT[:1] if slow else _NEXT)
    network.rows_together = not problem
    if problem:
        message = "rows of the model's batches are decoded one by one: together they are not what each is alone"
        logs.event(log, message, logging.WARNING, model=info.model_id, error=problem)
        alone = f"rows one by one, because in a batch {problem}"
        reports = tuple(
            replace(report, note="; ".join(filter(None, [alone, report.note]))) if report.phase == "decode" else report
            for report in reports
        )
    network.prompts_together = not (slow or problem or keeps_checkpoints(info.geometry.new_caches()))
    if network.prompts_together and (problem := prompts_problem(network, info.geometry)):
        network.prompts_together = False
        message = "prompts are computed one by one: in a batch they are not what each is alone"
        logs.event(log, message, logging.WARNING, model=info.model_id, error=problem)
    problem = ahead_problem(network, info.geometry) if speculation else ""
    network.ahead = speculation and not problem
    if problem:
        message = "no step computes several tokens of a row: they are not what they are one by one"
        logs.event(log, message, logging.WARNING, model=info.model_id, error=problem)
    network.steps = compiled_steps(info.model_id, network, info.geometry, reports)
    return info, reports


def fastest_products(network: Network, geometry: Geometry, speeds: Speeds | None) -> list[PathReport]:
    """Choose how products with quantized weights are computed; says what is not as given.

    On Metal, where it was not measured, nothing is chosen: it takes rows for a matrix by itself.
    """
    return choose(network.model, geometry.dtype, speeds.products) if speeds and (on_cpu() or available()) else []


def compiled_steps(
    model: str, network: Network, geometry: Geometry, paths: Sequence[PathReport]
) -> CompiledSteps | None:
    """What compiles the decode steps of a network, where the GPU is fast enough to wait for Python, and they are right.

    Where `paths`, which were chosen, are those that read what is written in place, K and V are, if that is right, too.
    A CPU never waits; Metal was not measured.
    """
    if not available():
        return None
    flash = any(report.phase == "decode" and report.path in (FLASH_DECODING, LATENT_FLASH) for report in paths)
    for in_place in (True, False) if flash else (False,):
        problem = compiled_problem(network, geometry, in_place=in_place)
        if not problem:
            return CompiledSteps(network.computed, in_place=in_place)
        what = (
            "K and V of compiled decode steps are not written in place" if in_place else "decode steps are not compiled"
        )
        message = f"{what}, and take more of the processor's time"
        logs.event(log, message, logging.WARNING, model=model, error=problem)
    return None


def compiled_problem(network: Network, geometry: Geometry, *, in_place: bool = False) -> str:
    """What is wrong with decode steps that are compiled, beside the same ones that are not; "" where nothing is."""
    if problem := _compiled_problem(network, geometry, _LONG_ROWS[:1], in_place):
        return problem
    return _compiled_problem(network, geometry, _LONG_ROWS, in_place) if network.rows_together else ""


def _compiled_problem(network: Network, geometry: Geometry, prompts: Sequence[Sequence[int]], in_place: bool) -> str:
    """Most steps behind these prompts must be right: rounding can change which experts the others' tokens have.

    Attention over padding is split otherwise in steps that are not compiled, so rows of a batch are rounded otherwise,
    too: they may differ by twice what each alone does.
    """
    steps = CompiledSteps(network.computed, steps_before=0, in_place=in_place)
    columns = [tokens[: len(prompts)] for tokens in _STEPS]
    before, network.steps = network.steps, None
    try:
        rows = _prefilled(network, geometry, prompts)
        wanted = _decoded(network, merged(*rows), columns)
        rounding = (
            _typical(wanted, _decoded_alone(network, [merged(row) for row in rows], columns)) if len(rows) > 1 else 0.0
        )
        network.steps = steps
        found = _decoded(network, merged(*_prefilled(network, geometry, prompts)), columns)
        if network.steps is None or not steps.compiled:
            return "they cannot be traced"
    except (RuntimeError, ValueError, TypeError) as raised:
        return str(raised)
    finally:
        network.steps = before
    error, most = _typical(found, wanted), _most_error(geometry)
    if error <= max(most, 2 * min(rounding, most)):
        return ""
    return f"logits differ by {error:.2g} of the largest"


def _proved(
    info: ModelInfo, network: Network, backend: AttentionBackend, speeds: PathSpeeds | None
) -> tuple[PathReport, ...]:
    caches = info.geometry.new_caches()
    try:
        for tokens in ([[0, 0]], [[0]]):
            mx.eval(_run(network, tokens, caches))
        mx.eval(_run(network, [[0]], merged(caches)))
    except (RuntimeError, ValueError) as error:
        raise FailedPrecondition(f"model {info.model_id!r} cannot run on this backend: {error}") from error
    return tuple(backend.self_test(info.geometry, speeds))


def order_problem(network: Network, geometry: Geometry) -> str:
    """What is wrong with a prompt's tokens beside the same before other last ones; "" where nothing is.

    Both prompts are of one length, so that they are rounded alike.
    """
    end = len(_TEXT) - _LAST
    one, other = (
        _run(network, [tokens], geometry.new_caches())[:, end - _COMPARED : end]
        for tokens in (_TEXT, (*_TEXT[:end], *_TEXT[:_LAST]))
    )
    error = _error(one, other, geometry)
    return f"its tokens see later ones, and logits differ by {error:.2g} of the largest" if error else ""


def batch_problem(network: Network, geometry: Geometry, steps: Sequence[tuple[int, ...]] = _NEXT) -> str:
    """Return how a batch of two rows of different lengths differs from each alone; "" if it does not.

    `steps` are the tokens of both that are decoded.
    """
    if wrong := _WRONG_TOGETHER.get(type(network.model).__module__):
        return wrong
    try:
        rows = _prefilled(network, geometry, _ROWS)
        found = _decoded(network, merged(*rows), steps)
    except (RuntimeError, ValueError, TypeError) as raised:
        return str(raised)
    error = _error(found, _decoded_alone(network, [merged(row) for row in rows], steps), geometry)
    return f"logits differ by {error:.2g} of the largest" if error else ""


def prompts_problem(network: Network, geometry: Geometry) -> str:
    """What is wrong with two prompts that are computed in a batch, with what is computed behind them in a batch, and
    with the tokens behind that, beside each alone; "" where nothing is.
    """
    prompts = _LATENT_ROWS if geometry.latents else _ROWS
    try:
        rows = _prefilled(network, geometry, prompts)
        together = padded_caches([len(row) for row in prompts], geometry.new_caches)
        _run(network, padded_rows(prompts), together)
        behind = _run(network, _BEHIND, together)
        found = _decoded(network, together, _NEXT)
    except (RuntimeError, ValueError, TypeError) as raised:
        return str(raised)
    alone = [merged(row) for row in rows]
    wanted = [_run(network, [tokens], row) for tokens, row in zip(_BEHIND, alone, strict=True)]
    error = _typical(behind, mx.concatenate(wanted))
    if error <= _most_error(geometry):
        error = _error(found, _decoded_alone(network, alone, _NEXT), geometry)
    return f"logits differ by {error:.2g} of the largest" if error else ""


def ahead_problem(network: Network, geometry: Geometry) -> str:
    """What is wrong with several tokens of a row in one step, and with the next ones once some of them are dropped,
    beside tokens one by one; "" where nothing is. Layers that cannot be trimmed are never asked for that.
    """
    if geometry.states:
        return ""
    [row] = _prefilled(network, geometry, _ROWS[:1])
    plain, ahead = merged(row), merged(copy.deepcopy(row))
    first = [tokens[0] for tokens in _STEPS]
    one_by_one = _decoded(network, plain, [[token] for token in first])
    try:
        found = network(mx.array([[*first[:4], *_TEXT[:3]]]), cache=ahead)[:, :4]
        for cache in ahead:
            cache.trim(3)
        behind = network(mx.array([first[4:]]), cache=ahead)
        mx.eval(found, behind)
    except (RuntimeError, ValueError, TypeError) as raised:
        return str(raised)
    error = max(_error(found, one_by_one[:, :4], geometry), _error(behind, one_by_one[:, 4:], geometry))
    return f"logits differ by {error:.2g} of the largest" if error else ""


def _run(network: Network, rows: Sequence[Sequence[int]], caches: Sequence[Any]) -> mx.array:
    """Compute rows of tokens layer by layer, with pauses; return their logits, lazily."""
    logits = network(mx.array([list(row) for row in rows]), cache=caches)
    compute(cache.state for cache in caches)
    return logits


def _prefilled(network: Network, geometry: Geometry, prompts: Sequence[Sequence[int]]) -> list[Caches]:
    """Caches of each prompt; logits, which cost a CPU a fourth of a small model, are not computed."""
    rows = []
    for prompt in prompts:
        caches = geometry.new_caches()
        _run(network, [prompt], caches)
        rows.append(caches)
    return rows


def _decoded(network: Network, caches: Sequence[Any], columns: Sequence[tuple[int, ...] | list[int]]) -> mx.array:
    """Logits [rows, steps, vocabulary] behind each token of the rows of a batch, evaluated."""
    steps = []
    for tokens in columns:
        steps.append(network(mx.array(tokens)[:, None], cache=caches))
        compute([steps[-1]])
    return mx.concatenate(steps, axis=1)


def _decoded_alone(network: Network, batches: Sequence[Sequence[Any]], columns: Sequence[tuple[int, ...]]) -> mx.array:
    """As `_decoded`, of a batch for each row."""
    return mx.concatenate(
        [_decoded(network, batch, [[tokens[row]] for tokens in columns]) for row, batch in enumerate(batches)]
    )


def _error(found: mx.array, wanted: mx.array, geometry: Geometry) -> float:
    """The least that any position [rows, positions, …] is off by, of the largest logit; 0 where that is rounding, and
    infinite where it is NaN.
    """
    error: float = _errors(found, wanted).min().item()  # type: ignore[assignment]
    return 0.0 if error <= _most_error(geometry) else math.inf if math.isnan(error) else error


def _typical(found: mx.array, wanted: mx.array) -> float:
    """What half of the positions [rows, positions, …] are off by at most, of the largest logit; infinite where any is
    NaN.
    """
    errors = _errors(found, wanted)
    by_position = mx.sort(mx.where(mx.isnan(errors).any(), mx.inf, errors))
    error: float = by_position[by_position.size // 2].item()  # type: ignore[assignment]
    return error


def _errors(found: mx.array, wanted: mx.array) -> mx.array:
    """What each position [rows, positions, …] is off by at most, of the largest logit."""
    return mx.abs(found - wanted).max(axis=(0, 2)) / mx.abs(wanted).max()


def _most_error(geometry: Geometry) -> float:
    return _MOST_ERROR_ON_CPU.get(geometry.dtype, _MOST_ERROR) if on_cpu() else _MOST_ERROR
