"""What is proved of a model once its weights are there: that it runs on this backend, with right attention, in batches.

A model's own code may be right for one sequence and wrong for two: masks that broadcast over another axis, offsets that
are taken for numbers. Such rows are decoded by themselves. Engine thread.
"""

import logging
from dataclasses import replace

import mlx.core as mx

from agentmem import logs
from agentmem.errors import FailedPrecondition
from inference_service.engine.attention import AttentionBackend, PathReport, PathSpeeds
from inference_service.engine.geometry import Geometry, merged
from inference_service.engine.network import Network
from inference_service.engine.quantization import PLAIN
from inference_service.models.opening import ModelInfo

log = logging.getLogger(__name__)

_ROWS = ((1, 2, 3, 4, 5), (3, 1))
"""Token ids of two prompts: the second one is padded."""
_NEXT = (2, 4)
_MOST_ERROR = 0.05
"""Of the largest logit. Rows that see padding or another's tokens are off by 0.2 and more; bfloat16 rounds to 0.01."""


def prove(
    info: ModelInfo, network: Network, backend: AttentionBackend, speeds: PathSpeeds | None
) -> tuple[ModelInfo, tuple[PathReport, ...]]:
    """Run the network in both phases, alone and in a batch, and attention's self-test, which chooses decode paths.

    `backend` is the one that the network was opened with; `speeds` None takes the decode paths preferred by default.
    Where the scheme `rotated` fails on this backend, the model comes back with `plain`. `network.rows_together` says
    afterwards whether a batch may have several rows. Raises FailedPrecondition where that fails, too.
    """
    try:
        reports = _proved(info, network, backend, speeds)
    except FailedPrecondition as error:
        geometry = info.geometry
        if geometry.format.scheme == PLAIN:
            raise
        info = info.with_format(replace(geometry.format, scheme=PLAIN))
        reports = _proved(info, network, backend, speeds)
        message = "K and V are quantized as they are, which costs quality: rotating them fails on this backend"
        logs.event(log, message, logging.WARNING, model=info.model_id, error=error.message)
    problem = batch_problem(network, info.geometry)
    network.rows_together = not problem
    if problem:
        message = "rows of the model's batches are decoded one by one: together they are not what each is alone"
        logs.event(log, message, logging.WARNING, model=info.model_id, error=problem)
        alone = f"rows one by one, because in a batch {problem}"
        reports = tuple(
            replace(report, note="; ".join(filter(None, [alone, report.note]))) if report.phase == "decode" else report
            for report in reports
        )
    return info, reports


def _proved(
    info: ModelInfo, network: Network, backend: AttentionBackend, speeds: PathSpeeds | None
) -> tuple[PathReport, ...]:
    caches = info.geometry.new_caches()
    try:
        for tokens in ([[0, 0]], [[0]]):
            mx.eval(network(mx.array(tokens), cache=caches))
        mx.eval(network(mx.array([[0]]), cache=merged(caches)))
    except (RuntimeError, ValueError) as error:
        raise FailedPrecondition(f"model {info.model_id!r} cannot run on this backend: {error}") from error
    return tuple(backend.self_test(info.geometry, speeds))


def batch_problem(network: Network, geometry: Geometry) -> str:
    """What is wrong with a batch of two rows of different lengths, beside each alone; "" where nothing is."""
    rows = []
    for prompt in _ROWS:
        caches = geometry.new_caches()
        mx.eval(network(mx.array([prompt]), cache=caches), [cache.state for cache in caches])
        rows.append(caches)
    together = [type(one).merge([one, other]) for one, other in zip(*rows, strict=True)]
    alone = mx.concatenate(
        [network(mx.array([[token]]), cache=merged(caches)) for token, caches in zip(_NEXT, rows, strict=True)]
    )
    try:
        found = network(mx.array(_NEXT)[:, None], cache=together)
        error = float(mx.abs(found - alone).max() / mx.abs(alone).max())
    except (RuntimeError, ValueError, TypeError) as raised:
        return str(raised)
    return "" if error <= _MOST_ERROR else f"logits differ by {error:.2g} of the largest"
