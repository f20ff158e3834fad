"""Checks at load that attention over quantized K and V is right here, for the model's own geometry."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np

from agentmem.errors import FailedPrecondition
from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.attention.reference import out_of_packed, plain_attention, plain_values, random_codec
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.paged import attention, kernels, write_kernels
from inference_service.engine.paged.arena import Arena, DeviceArena
from inference_service.engine.paged.kernels import LayerBlocks, PagedGroup, Tables
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.paged.passes import banded
from inference_service.engine.quantization import Quantized

ROUNDING: Final = {mx.float32: 1e-4, mx.bfloat16: 3e-2, mx.float16: 5e-3}
_MOST_PACKING_ERROR: Final = 4.0
"""Means or a rotation that only one side has are off by 7 with 3 bits, and by more with more."""
_WRITTEN: Final = 3.0
"""Most error of what kernels wrote over that of packing."""
_ONE = ((1, (700,)), (1, (300, 170)), (1, (90, 1300, 600)))
_FEW = ((5, (700,)), (40, (130,)), (3, (300, 170)))
_ARRAYS = ((60, (300, 170)), (60, (60,)))
"""Queries per row, and the rows' tokens: in one block and across several, beyond a chunk and a thread block."""
_LAST: Final = 20
"""Tokens that are written after the others, as few as a step's."""


class Row(NamedTuple):
    """Sequences in a layer group's blocks."""

    of: LayerBlocks
    values: list[tuple[mx.array, mx.array]]
    """By sequence, float32 [1, kv_heads, tokens, width]."""
    kv: list[tuple[mx.array, mx.array]]
    """[1, kv_heads, tokens, width] before packing."""
    lengths: tuple[int, ...]
    means: tuple[mx.array, mx.array]
    """[kv_heads, width] of K and V, even if packing does not subtract them."""
    off: float
    """RMS error of `values` over that of packing alone; about 1."""
    latents: bool = False

    def only(self, sequence: int) -> "Row":
        own = slice(sequence, sequence + 1)
        of = self.of._replace(tables=Tables(*(part[own] for part in self.of.tables)))
        return self._replace(of=of, values=self.values[own], kv=self.kv[own], lengths=self.lengths[own])

    def error(self, found: mx.array, queries: mx.array, scale: float, sinks: mx.array | None) -> float:
        """Return how far attention [rows, heads, n, v_dim] is off, of the largest output less the mean."""
        wanted = []
        for at, (k, v) in enumerate(self.values):
            if self.latents:
                k, v = mx.concatenate([k, v], axis=-1), k
            wanted.append(plain_attention(queries[at : at + 1], k, v, scale, self.of.group.window, sinks))
        truth, mean = mx.concatenate(wanted), self.means[not self.latents]
        of_mean = mx.repeat(mean.astype(mx.float32), queries.shape[1] // self.of.group.kv_heads, axis=0)[:, None]
        difference = mx.abs(found.astype(mx.float32) - truth).max()
        error: float = (difference / mx.abs(truth - of_mean).max()).item()  # type: ignore[assignment]
        return error


Kernel = Callable[[Row, mx.array, float, mx.array | None], mx.array]
"""(K and V in blocks, queries [rows, heads, n, k_dim], scale, sinks) to outputs [rows, heads, n, v_dim]."""


def _one(row: Row, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
    of, packed = _written(row, queries)
    return attention.flash_decoding(of, queries, scale, sinks, packed)


def _few(row: Row, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
    of, packed = _written(row, queries)
    return attention.flash_prefill(of, queries, scale, sinks, packed)


def _over_arrays(row: Row, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
    n, window, found = queries.shape[2], row.of.group.window, []
    for at, length in enumerate(row.lengths):
        total = min(length, window + n - 1) if window else length
        mask = "causal" if total <= (window or total) else banded(n, total, window)
        of, packed = _written(row.only(at), queries[at : at + 1])
        found.append(attention.over_arrays(of, queries[at : at + 1], total, mask, scale, sinks, packed))
    return mx.concatenate(found)


def _written(row: Row, queries: mx.array) -> tuple[LayerBlocks, mx.array | None]:
    """Write the last tokens again, with their queries, as in a pass."""
    if row.of.codec.kernel_bases is None:
        return row.of, None
    k, v = (mx.concatenate([x[:, :, -queries.shape[2] :] for x in side]) for side in zip(*row.kv, strict=True))
    written, packed = write_kernels.write_with_queries(row.of, k, v, queries)
    return row.of._replace(written=written), packed


def _latents(row: Row, queries: mx.array, scale: float, _: mx.array | None) -> mx.array:
    absorbed, rotary = mx.split(queries, [row.of.group.k_dim], axis=-1)
    return attention.flash_latents(row.of, absorbed, rotary, max(row.lengths), scale)


def one_query_error(geometry: Geometry) -> float:
    """Return the largest error over all layer groups, relative to the largest output.

    Raises FailedPrecondition if rounding does not explain it, and the kernel's ValueError and RuntimeError.
    """
    return _kernel_error(_latents if geometry.latents else _one, "one query", _ONE, geometry)


def few_queries_error(geometry: Geometry) -> float:
    return _kernel_error(_latents if geometry.latents else _few, "a few queries", _FEW, geometry)


def many_queries_error(geometry: Geometry) -> float:
    """As `one_query_error`, for many queries, over arrays in the packed basis."""
    return _kernel_error(_over_arrays, "many queries", _ARRAYS, geometry)


def unpacking_error(geometry: Geometry) -> float:
    """Return the largest error of unpacked K and V. Raises as `one_query_error`, and if writing is wrong."""
    errors = []
    for group in geometry.groups:
        for n, lengths in _ARRAYS:
            row = in_blocks(geometry, group, lengths, seed=3)
            if not row.off <= _WRITTEN:
                raise FailedPrecondition(f"writing is wrong on this backend: K or V is {row.off:.2g} roundings off")
            begins = mx.array([length - n for length in lengths])
            found = kernels.decoded(row.of, begins, n)
            for side in (0, 1):
                wanted = mx.concatenate([each[side][:, :, -n:] for each in row.values])
                off = mx.abs(found[side].astype(mx.float32) - wanted).max() / mx.abs(wanted).max()
                errors.append(float(off.item()))  # type: ignore[arg-type]  # While the blocks are there.
    return _within(errors, geometry, "unpacking")


def _kernel_error(
    kernel: Kernel, what: str, shapes: Sequence[tuple[int, tuple[int, ...]]], geometry: Geometry
) -> float:
    errors, sunk = [], (False,) if geometry.latents else (False, True)
    for n, lengths in shapes:
        for group in geometry.groups:
            row = in_blocks(geometry, group, lengths, seed=7)
            errors += [_error(kernel, row, n, geometry, sinks) for sinks in sunk]
    return _within(errors, geometry, what)


def _within(errors: Sequence[float], geometry: Geometry, what: str) -> float:
    error = float(np.max(errors))
    if not error <= ROUNDING[geometry.dtype]:
        raise FailedPrecondition(f"quantized attention is wrong on this backend: {what} differs by {error:.2g}")
    return error


def _random(dtype: mx.Dtype, seed: int, *shape: int, mean: mx.array | float = 0.0) -> mx.array:
    return (mx.random.normal(shape, key=mx.random.key(seed)) + mean).astype(dtype)


def in_blocks(geometry: Geometry, group: LayerGroup, lengths: tuple[int, ...], seed: int) -> Row:
    """Write random K and V to blocks in random order."""
    random = partial(_random, geometry.dtype)
    tokens = geometry.piece_tokens if group.window else BLOCK_TOKENS
    layout = BlockLayout(geometry.shapes(group, tokens) if group.window else geometry.block_shapes(tokens))
    paged = PagedGroup.of(geometry, group, layout, tokens)
    k_mean, v_mean = random(seed, group.kv_heads, group.k_dim), 0.125 * random(seed + 1, group.kv_heads, group.v_dim)
    if geometry.latents:  # Outputs contain this mean, and so its rounding.
        k_mean = 0.125 * k_mean
    codec = random_codec(geometry.format_of(group), (k_mean, v_mean), seed)
    firsts = [max(0, length - group.window - 60) // tokens * tokens if group.window else 0 for length in lengths]
    counts = [-(-(length - first) // tokens) for length, first in zip(lengths, firsts, strict=True)]
    arena = DeviceArena(layout, sum(counts) + 1)
    places = np.random.default_rng(seed).permutation(sum(counts))
    layer, found = mx.array([len(group.layers) - 1]), np.zeros((len(lengths), max(counts)), np.int64)
    spans = np.array([*zip(firsts, lengths, strict=True)], np.int32)
    tables = Tables(mx.array(found), mx.array(spans), mx.zeros(len(lengths), dtype=mx.int32))
    of, values, off, kv = LayerBlocks(paged, layer, codec, tables), [], [], []
    for row, (length, first, count) in enumerate(zip(lengths, firsts, counts, strict=True)):
        own = places[sum(counts[:row]) : sum(counts[: row + 1])].tolist()
        found[row, :count] = arena.addresses(own)
        k = random(seed + 10 + row, 1, group.kv_heads, length - first, group.k_dim, mean=k_mean[:, None])
        v = random(seed + 30 + row, 1, group.kv_heads, length - first, group.v_dim, mean=v_mean[:, None])
        split = max(1, length - first - _LAST)
        parts = slice(0, split), slice(split, length - first)
        for part in parts:
            span = mx.array([[first, first + part.stop]], dtype=mx.int32)
            one = of._replace(tables=Tables(mx.array(found[row : row + 1]), span, mx.array([0], dtype=mx.int32)))
            of = of._replace(written=write_kernels.write(one, k[:, :, part], v[:, :, part]))
            mx.eval(of.written)
        values.append(_values(arena, geometry, group, own, length - first, codec))
        kv.append((k, v))
        for side in zip((k, v), codec.decode(*codec.encode(k, v)), values[-1], strict=True):
            off += [_off(*(x[:, :, part] for x in side)) for part in parts]
    of = of._replace(tables=tables._replace(blocks=mx.array(found)))
    _KEPT[:] = [arena]
    return Row(of, values, kv, lengths, (k_mean, v_mean), float(np.max(off)), geometry.latents)


def _off(x: mx.array, packed: mx.array, found: mx.array) -> float:
    errors = [mx.square(x.astype(mx.float32) - each[..., : x.shape[-1]]).mean().sqrt() for each in (found, packed)]
    error: float = (errors[0] / errors[1]).item()  # type: ignore[assignment]
    return error


_KEPT: list[DeviceArena] = []
"""The memory of the last sequences, kept alive: kernels read it by address."""


def _values(
    arena: Arena, geometry: Geometry, group: LayerGroup, blocks: list[int], tokens: int, codec: KVCodec
) -> tuple[mx.array, mx.array]:
    """Unpack the last layer's K and V in blocks, float32 [1, kv_heads, tokens, width]."""
    parts: dict[str, Any] = arena.arrays(blocks, tokens)
    prefix, sides = geometry.prefix(group), []
    backs = out_of_packed(codec, (group.k_dim, group.v_dim))
    for side, by, mean, back in (
        ("k", codec.format.k, codec.k_mean, backs[0]),
        ("v", codec.format.v, codec.v_mean, backs[1]),
    ):
        words, scales, biases = (mx.array(parts[f"{prefix}{side}.{part}"][-1:]) for part in Quantized._fields)
        if scales.dtype != geometry.dtype:
            scales, biases = scales.view(geometry.dtype), biases.view(geometry.dtype)
        packed = Quantized(words, scales.astype(mx.float32), biases.astype(mx.float32))
        given = mx.zeros((group.kv_heads, 1)) if mean is None else mean[:, 0]
        sides.append(plain_values(packed, by, given, back))
    return sides[0], sides[1]


def _error(kernel: Kernel, row: Row, queries: int, geometry: Geometry, with_sinks: bool) -> float:
    group, random = row.of.group, partial(_random, geometry.dtype)
    q = random(1, len(row.lengths), geometry.heads, queries, group.k_dim + geometry.latents * group.v_dim)
    sinks = random(2, geometry.heads, mean=4.0) if with_sinks else None
    scale = group.k_dim**-0.5
    return row.error(kernel(row, q, scale, sinks), q, scale, sinks)


def packing_error(geometry: Geometry) -> float:
    """Return the RMS error of normal K and V, packed and unpacked, times the steps of their bits: about 1.4.

    Raises FailedPrecondition if rounding does not explain it: attention's own tests cannot see a mean missing there.
    """
    errors = []
    for group in geometry.groups:
        keys, by = iter(mx.random.split(mx.random.key(5), 4)), geometry.format_of(group)
        k_mean, v_mean, k, v = (
            mx.random.normal((*shape, width), key=next(keys))
            for shape in ((group.kv_heads,), (1, group.kv_heads, 65))
            for width in (group.k_dim, group.v_dim)
        )
        given = [(x + mean[:, None]).astype(geometry.dtype) for x, mean in ((k, k_mean), (v, v_mean))]
        codec = random_codec(by, (k_mean.astype(geometry.dtype), v_mean.astype(geometry.dtype)), seed=6)
        for x, found, bits in zip(given, codec.decode(*codec.encode(*given)), (by.k_bits, by.v_bits), strict=True):
            off = mx.square((found[..., : x.shape[-1]] - x).astype(mx.float32)).mean().sqrt()
            errors.append(off * (2**bits - 1))
    error: float = mx.stack(errors).max().item()  # type: ignore[assignment]
    if not error <= _MOST_PACKING_ERROR:
        raise FailedPrecondition(f"K and V are packed or unpacked wrongly on this backend: {error:.2g} steps off")
    return error
