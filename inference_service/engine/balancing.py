"""Bases of K and V in which quantization costs attention least.

Packing errs by a share of the whole row. With K E packed, and Q E^-T for Q, squared errors of scores are in proportion
to

    sum over keys k and queries q of  weight (k P k^T) (q P^-1 q^T)        where P = E E^T

Least for P A P = B, with weighted second moments A of keys and B of queries. The weight is the softmax's slope p (1 -
p) times the summand, so P is found in rounds; for V it is p^2, and B is 1. Half of what 4 bits cost SmolLM2-135M is
left; scaling channels (SmoothQuant, Xiao et al. 2023) leaves four fifths.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from inference_service.engine.blas_threads import one_blas_thread

Matrix = npt.NDArray[Any]

_ROUNDS: Final = 4
_RIDGE: Final = 1.0
"""Share of the mean eigenvalue: 1,024 tokens know little of rare directions. SmolLM2's 4 bits: 0.020 nats with 0.01."""


class Bases(NamedTuple):
    """E, float64 [kv_heads, width, width], of determinants 1 or -1."""

    k: Matrix
    v: Matrix


def bases(keys: mx.array, values: mx.array, queries: mx.array, weights: Iterable[mx.array]) -> Bases:
    """Return them for K [kv_heads, n, k_dim] and V, less means, and queries [kv_heads, rows, k_dim]; `weights` by KV
    head [rows, n]. Engine thread.
    """
    found = [
        (_of_keys(k, q, p * (1 - p)), _of_values(v, p))
        for k, v, q, p in zip(keys, values, queries, weights, strict=True)
    ]
    return Bases(*(np.stack(side) for side in zip(*found, strict=True)))


def apart(a: Matrix, b: Matrix) -> float:
    try:
        with one_blas_thread():
            between = np.linalg.solve(a, b)
            ratios = np.linalg.eigvalsh(between @ between.swapaxes(-1, -2))
    except np.linalg.LinAlgError:
        return np.inf
    least, most = float(ratios.min()), float(ratios.max())
    return max(most, 1 / least) if least > 0 else np.inf


def _of_keys(keys: mx.array, queries: mx.array, slopes: mx.array) -> Matrix:
    mx.eval(slopes)
    p: Matrix = np.eye(keys.shape[1])
    for _ in range(_ROUNDS):
        of_keys, of_queries = _squares(keys, p), _squares(queries, _inverse(p))
        by_keys, by_queries = (mx.square(of_queries).T @ slopes).T, slopes @ mx.square(of_keys)
        p = _mean(_moment(keys, of_keys * by_keys), _moment(queries, of_queries * by_queries))
    return _root(p)


def _of_values(values: mx.array, weights: mx.array) -> Matrix:
    moment = _moment(values, mx.square(weights).sum(axis=0)[:, None])
    return _root(_mean(moment, np.eye(len(moment))))


def _squares(rows: mx.array, p: Matrix) -> mx.array:
    return ((rows @ mx.array(p.astype(np.float32))) * rows).sum(axis=1, keepdims=True)


def _moment(rows: mx.array, weights: mx.array) -> Matrix:
    """Return the moment of rows [n, width], of mean eigenvalue 1, with the ridge."""
    found = np.array((rows * weights).T @ rows, dtype=np.float64)
    width, trace = len(found), float(np.trace(found))
    return (found * (width / trace) if trace > 0 else np.eye(width)) + _RIDGE * np.eye(width)


def _inverse(p: Matrix) -> Matrix:
    with one_blas_thread():
        return np.linalg.inv(p)


def _mean(a: Matrix, b: Matrix) -> Matrix:
    with one_blas_thread():
        lower = np.linalg.cholesky(a)
        inverse = np.linalg.inv(lower)
        lengths, axes = np.linalg.eigh(lower.T @ b @ lower)
        half = (axes * np.sqrt(lengths)).T @ inverse
        p = half.T @ (half / np.sqrt(lengths)[:, None])
        return np.asarray(p / np.exp(np.linalg.slogdet(p)[1] / len(p)), dtype=np.float64)


def _root(p: Matrix) -> Matrix:
    with one_blas_thread():
        lengths, axes = np.linalg.eigh(p)
    return np.asarray(axes * np.sqrt(lengths), dtype=np.float64)
