"""Kernels for NVIDIA GPUs that pack K and V into the pool's blocks.

With bases, K, V and queries are multiplied by the same launch: a step waits for MLX's products.
"""

from functools import lru_cache
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.codec import Basis
from inference_service.engine.cuda_kernel import kernel
from inference_service.engine.matrices import FILES as PRODUCTS
from inference_service.engine.matrices import tiles
from inference_service.engine.paged.kernels import FILES, WARPS, LayerBlocks, PagedGroup, by_sides, mean_of
from inference_service.engine.quantization import filled_up

_PLACE: Final = """
  int64_t block;
  int slot;
  const int* span = spans + row * spans_strides[0];
  const bool there = find_place<{tokens}>(
      tables + row * tables_strides[0], span[0], floors[row], span[1] - n + token, block, slot);
"""
_WRITE = (
    """
  const int heads = keys_shape[1], n = keys_shape[2], at = {at};
  if (at >= keys_shape[0] * heads * n) return;
  if (at == 0 && blockIdx.y == 0 && threadIdx.x == 0) written[0] = 1;
  const int token = at % n, kv_head = at / n % heads, row = at / n / heads;"""
    + _PLACE
    + """
  if (!there) return;
  {k_in}
  {v_in}
  if (blockIdx.y == 0) {{
    {k}
  }} else {{
    {v}
  }}
"""
)
_SIDE = """encode_row<{type}, {bits}, {group_size}, {dim}, {block}>(
        {array} + row * {array}_strides[0] + kv_head * {array}_strides[1] + token * {array}_strides[2],
        {array}_strides[3], {array}_shape[3], {mean},
        {side}_in.words_of(block, slot), {side}_in.scales_of(block, slot), {side}_in.biases_of(block, slot));"""

_BASED_WARPS: Final = 8
_BASED = """
  const int heads = keys_shape[1], n = keys_shape[2], end = keys_shape[0] * n;
  const int kv_head = blockIdx.x % heads, first = blockIdx.x / heads * {count}, warp = threadIdx.x / 32;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) written[0] = 1;
  __shared__ union {{
    TimesMatrix<{type}, {k_dim}, {warps}, {tiles}> k;
    TimesMatrix<{type}, {v_dim}, {warps}, {tiles}> v;
  }} with;
  {k_in}
  {v_in}
  if (blockIdx.y == 0) {{
    {k}
  }} else if (blockIdx.y == 1) {{
    {v}
  }}
  {queries}
"""
_BASED_SIDE = (
    """
    const {type}* matrix = {side}_into + kv_head * {dim} * {dim};
    with.{side}.fetch(matrix);
    with.{side}.fill([&](int i) {{
      int at = first + i;
      return at < end ? {array} + at / n * {array}_strides[0] + kv_head * {array}_strides[1]
                      + at % n * {array}_strides[2] : nullptr;
    }}, {array}_strides[3], {array}_shape[3], {mean});
    with.{side}.multiply(matrix);
    for (int i = warp; i < {count} && first + i < end; i += {warps}) {{
      const int token = (first + i) % n, row = (first + i) / n;"""
    + _PLACE
    + """
      if (!there) continue;
      float x[{dim} / 32];
      for (int j = 0; j < {dim} / 32; ++j) x[j] = with.{side}.out[i][32 * j + threadIdx.x % 32];
      pack_row<{type}, {bits}, {group_size}, {dim}>(
          x, {side}_in.words_of(block, slot), {side}_in.scales_of(block, slot), {side}_in.biases_of(block, slot));
    }}"""
)
_QUERIES = """else {{
    const int begin = first * {group} + (blockIdx.y - 2) * {count}, stop = min(first + {count}, end) * {group};
    if (begin >= stop) return;
    const {type}* matrix = k_across + kv_head * {k_dim} * {k_dim};
    auto at = [&](int i, int64_t row_step, int64_t head_step, int64_t token_step) {{
      int token = (begin + i) / {group}, head = kv_head * {group} + (begin + i) % {group};
      return token / n * row_step + head * head_step + token % n * token_step;
    }};
    with.k.fetch(matrix);
    with.k.fill([&](int i) {{
      return begin + i < stop ? queries + at(i, queries_strides[0], queries_strides[1], queries_strides[2]) : nullptr;
    }}, queries_strides[3], queries_shape[3]);
    with.k.multiply(matrix, [&](int i, int column, float x, float y) {{
      if (begin + i >= stop) return;
      int64_t to = at(i, int64_t(heads) * {group} * n, n, 1) * {k_dim} + column;
      *reinterpret_cast<uint32_t*>(packed_queries + to) = pair<{type}>(x, y);
    }});
  }}"""


def write(of: LayerBlocks, keys: mx.array, values: mx.array, *, as_encoded: bool = False) -> mx.array:
    """Pack K [rows, kv_heads, n, k_dim] and V into each row's last n places; evaluate the result.

    `as_encoded` packs to the last bit what `codec.encode` does. Raises ValueError for another dtype than the group's.
    """
    return _write(of, keys, values, None, None if as_encoded else of.codec.kernel_bases)[0]


def write_with_queries(
    of: LayerBlocks, keys: mx.array, values: mx.array, queries: mx.array
) -> tuple[mx.array, mx.array]:
    """Also return queries [rows, heads, n, k_dim] in the packed basis."""
    queries = filled_up(queries, of.codec.format.group_size)
    written, packed = _write(of, keys, values, queries, of.codec.kernel_bases)
    return written, of.codec.queries(queries) if packed is None else packed


def _write(
    of: LayerBlocks, keys: mx.array, values: mx.array, queries: mx.array | None, bases: tuple[Basis, Basis] | None
) -> tuple[mx.array, mx.array | None]:
    group, codec, tables = of.group, of.codec, of.tables
    if any(x.dtype != group.dtype for x in (keys, values, queries) if x is not None):
        raise ValueError(f"K and V of {keys.dtype} and {values.dtype}, or queries, for blocks of {group.dtype}")
    rows, heads, n, _ = keys.shape
    shapes: list[tuple[int, ...]] = [(1,)]
    if bases:
        inputs = [keys, values, codec.k_mean, codec.v_mean, *(basis.into for basis in bases)]
        sides, per_block = 2, tiles(max(group.k_dim, group.v_dim), rows * n)
        if queries is not None:
            inputs += [queries, bases[0].across]
            shapes.append(queries.shape)
            sides += queries.shape[1] // heads
        writer, warps = _based_writer(group, sides - 2, per_block), _BASED_WARPS
        blocks = heads * -(-rows * n // (16 * per_block))
    else:
        inputs = [*codec.balanced(keys, values), *(codec.kernel_means or ())]
        writer, warps = _writer(group, codec.kernel_means is not None), WARPS
        blocks, sides = -(-rows * heads * n // WARPS), 2
    written, *packed = writer(
        inputs=[*inputs, *tables, of.layer],
        grid=(blocks * warps * 32, sides, 1),
        threadgroup=(warps * 32, 1, 1),
        output_shapes=shapes,
        output_dtypes=[mx.int32, group.dtype][: len(shapes)],
    )
    return written, packed[0] if packed else None


_PLACES: Final = ("tables", "spans", "floors", "layer")


@lru_cache(maxsize=64)
def _writer(group: PagedGroup, centred: bool) -> Any:
    inputs = ["keys", "values", *["k_mean", "v_mean"] * centred, *_PLACES]
    source = by_sides(_WRITE, _SIDE, ("keys", "values"), group, "kv" * centred)
    return kernel("paged_write", inputs, ["written"], source, [*FILES, "encoding.cu"], group.rotated_width)


@lru_cache(maxsize=64)
def _based_writer(group: PagedGroup, heads: int, per_block: int) -> Any:
    """`heads`: query heads per KV head."""
    fields = group.fields() | {"group": heads, "tiles": per_block, "count": 16 * per_block, "warps": _BASED_WARPS}
    sides = {
        side: _BASED_SIDE.format(
            side=side, array=array, mean=mean_of(side), dim=fields[f"{side}_dim"], bits=fields[f"{side}_bits"], **fields
        )
        for side, array in (("k", "keys"), ("v", "values"))
    }
    source = _BASED.format(queries=_QUERIES.format(**fields) if heads else "", **sides, **fields)
    of_queries = ["queries", "k_across"] if heads else []
    inputs = ["keys", "values", "k_mean", "v_mean", "k_into", "v_into", *of_queries, *_PLACES]
    files = ["rotation.cu", *PRODUCTS, "paged/paged.cu", "encoding.cu"]
    return kernel("paged_write_based", inputs, ["written", *["packed_queries"] * bool(heads)], source, files)
