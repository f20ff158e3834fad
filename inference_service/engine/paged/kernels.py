"""Kernels for NVIDIA GPUs that read K and V in the pool's blocks, by address. MLX does not track that: a reader takes
the writer's output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

import mlx.core as mx

from agentmem.kv.blockfile import TENSORS
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import CUDA_TYPES, kernel
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.quantization import KVFormat, last_axes
from inference_service.engine.rotation import block

WARPS: Final = 4
_THREADS: Final = 256
_NOTHING: Final = mx.array([0], dtype=mx.int32)
FILES: Final = ("rotation.cu", "attention/quantized.cu", "paged/paged.cu")


@dataclass(frozen=True)
class PagedGroup:
    """A layer group in blocks of one layout; widths are whole quantization groups."""

    kv_heads: int
    k_dim: int
    v_dim: int
    format: KVFormat
    dtype: mx.Dtype
    tokens: int
    offsets: tuple[int, ...]
    """Bytes from a block's beginning to each tensor."""
    window: int = 0

    @classmethod
    def of(cls, geometry: Geometry, group: LayerGroup, layout: BlockLayout, tokens: int) -> Self:
        prefix = geometry.prefix(group)
        return cls(
            group.kv_heads, group.k_dim, group.v_dim, geometry.format_of(group), geometry.dtype, tokens,
            tuple(layout.tensors[prefix + name].offset for name in TENSORS), group.window or 0,
        )  # fmt: skip

    def fields(self) -> dict[str, str | int]:
        """Return fields of kernel templates; `k_in` and `v_in` locate a head in a block."""
        found: dict[str, str | int] = {
            "type": CUDA_TYPES[self.dtype],
            "group_size": self.format.group_size,
            "tokens": self.tokens,
        }
        for side, by, width, at in (
            ("k", self.format.k, self.k_dim, self.offsets[:3]),
            ("v", self.format.v, self.v_dim, self.offsets[3:]),
        ):
            words, groups, _ = last_axes(width, by).values()
            kind = f"InBlock<{CUDA_TYPES[self.dtype]}, {words}, {groups}, {self.tokens}>"
            declared = f"const {kind} {side}_in({at[0]}, {at[1]}, {at[2]}, layer[0] * {self.kv_heads} + kv_head);"
            found |= {
                f"{side}_dim": width,
                f"{side}_bits": by.bits,
                f"{side}_block": block(width, self.format),
                f"{side}_in": declared,
                f"{side}_paged": f"Paged<{CUDA_TYPES[self.dtype]}, {words}, {groups}, {self.tokens}>",
            }
        return found

    @property
    def rotated_width(self) -> int:
        """0 without rotation."""
        return max(self.k_dim, self.v_dim) if block(self.k_dim, self.format) else 0


class Tables(NamedTuple):
    """Addresses `blocks` int64 [rows, n], `spans` int32 [rows, 2]: position of a row's first block, end of its tokens,
    new ones included. Rows write nothing before `floors` int32 [rows].
    """

    blocks: mx.array
    spans: mx.array
    floors: mx.array


class Kernels(NamedTuple):
    """Attention over packed K and V for `one` query of a row, a `few` of a sequence; `traced` passes."""

    one: bool = False
    few: bool = False
    traced: bool = False


class LayerBlocks(NamedTuple):
    """One layer's K and V in blocks. `layer` int32 [1] is its place in the group. Readers wait for `written`."""

    group: PagedGroup
    layer: mx.array
    codec: KVCodec
    tables: Tables
    written: mx.array = _NOTHING


_ROW_OF_WARP: Final = f"blockIdx.x * {WARPS} + threadIdx.x / 32"
_DECODE = """
  const int heads = {heads}, total = total_tokens[0], at = {at};
  if (at >= tables_shape[0] * heads * total) return;
  const int token = at % total, kv_head = at / total % heads, row = at / total / heads;
  const int position = begins[row] + token, in_table = position - spans[row * spans_strides[0]];
  const bool there = position < spans[row * spans_strides[0] + 1] && in_table >= 0;
  {k_in}
  {v_in}
  const int64_t block = there ? tables[row * tables_strides[0] + in_table / {tokens}] : 0;
  const int slot = in_table % {tokens};
  if (blockIdx.y == 0) {{
    {k}
  }} else {{
    {v}
  }}
"""
_DECODE_SIDE = """{type}* to = {array} + int64_t(at) * {dim};
    if (there) {{
      decode_row<{type}, {bits}, {group_size}, {dim}, {block}>(
          {side}_in.words_of(block, slot), {side}_in.scales_of(block, slot), {side}_in.biases_of(block, slot),
          {mean}, to);
    }} else {{
      for (int i = threadIdx.x % 32; i < {dim}; i += 32) to[i] = static_cast<{type}>(0.0f);
    }}"""


def decoded(of: LayerBlocks, begins: mx.array, total: int) -> tuple[mx.array, mx.array]:
    """Return K and V [rows, kv_heads, total, width] in the model's own basis, from `begins` int32 [rows] on."""
    return of.codec.unbalanced(*_decoded(of, begins, total, of.codec.kernel_means or (None, None)))


def decoded_in_packed_basis(
    of: LayerBlocks, begins: mx.array, total: int, *, with_k_mean: bool
) -> tuple[mx.array, mx.array]:
    """As `decoded`, in the packed basis. K's mean shifts all scores of a query: it counts beside sinks alone."""
    assert of.codec.packed_means is not None
    k_mean, v_mean = of.codec.packed_means
    return _decoded(of, begins, total, (k_mean if with_k_mean else None, v_mean))


def _decoded(
    of: LayerBlocks, begins: mx.array, total: int, means: tuple[mx.array | None, mx.array | None]
) -> tuple[mx.array, mx.array]:
    group, tables = of.group, of.tables
    rows, heads = tables.blocks.shape[0], group.kv_heads
    inputs = [*(mean for mean in means if mean is not None), tables.blocks, tables.spans, of.layer, begins]
    with_means = "".join(side for side, mean in zip("kv", means, strict=True) if mean is not None)
    k, v = _decoder(group, with_means)(
        inputs=[*inputs, mx.array([total]), of.written],
        grid=(-(-rows * heads * total // WARPS) * WARPS * 32, 2, 1),
        threadgroup=(WARPS * 32, 1, 1),
        output_shapes=[(rows, heads, total, group.k_dim), (rows, heads, total, group.v_dim)],
        output_dtypes=[group.dtype, group.dtype],
    )
    return k, v


@lru_cache(maxsize=64)
def _decoder(group: PagedGroup, means: str) -> Any:
    inputs = [*(f"{side}_mean" for side in means), "tables", "spans", "layer", "begins", "total_tokens", "after"]
    outputs = ["k_out", "v_out"]
    source = by_sides(_DECODE, _DECODE_SIDE, outputs, group, means)
    return kernel("paged_decode", inputs, outputs, source, [*FILES, "paged/decoding.cu"], group.rotated_width)


def by_sides(template: str, side_template: str, arrays: Sequence[str], group: PagedGroup, means: str) -> str:
    """Return the source of a kernel that does the same with K and V; `means`: sides that have one."""
    fields = group.fields()
    sides = {
        side: side_template.format(
            array=array, side=side, mean=mean_of(side) if side in means else "nullptr, 0", type=fields["type"],
            group_size=fields["group_size"], **{name: fields[f"{side}_{name}"] for name in ("dim", "bits", "block")},
        )
        for side, array in zip("kv", arrays, strict=True)
    }  # fmt: skip
    return template.format(at=_ROW_OF_WARP, heads=group.kv_heads, **sides, **fields)


def mean_of(side: str) -> str:
    return f"{side}_mean + kv_head * {side}_mean_strides[0], {side}_mean_strides[2]"


_STORE = """
  const uint4* from = reinterpret_cast<const uint4*>(words + int64_t(blockIdx.y) * words_shape[1]);
  uint4* to = reinterpret_cast<uint4*>(addresses[blockIdx.y]);
  const int step = gridDim.x * blockDim.x, end = words_shape[1] / 4;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) to[i] = from[i];
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) stored[0] = 1;
"""
_LOAD = """
  const uint4* from = reinterpret_cast<const uint4*>(addresses[blockIdx.y]);
  uint4* to = reinterpret_cast<uint4*>(words + int64_t(blockIdx.y) * count[0]);
  const int step = gridDim.x * blockDim.x, end = count[0] / 4;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) to[i] = from[i];
"""
_COPIERS: Final = 32


def store(words: mx.array, addresses: mx.array) -> mx.array:
    """Copy words uint32 [n, words] to addresses int64 [n]; evaluate the result."""
    [stored] = _store()(
        inputs=[words, addresses],
        grid=(_COPIERS * _THREADS, words.shape[0], 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(1,)],
        output_dtypes=[mx.int32],
    )
    return stored  # type: ignore[no-any-return]


def load(addresses: mx.array, words: int) -> mx.array:
    """Return words uint32 [n, words], lazily."""
    [loaded] = _load()(
        inputs=[addresses, mx.array([words])],
        grid=(_COPIERS * _THREADS, addresses.shape[0], 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(addresses.shape[0], words)],
        output_dtypes=[mx.uint32],
    )
    return loaded  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def _store() -> Any:
    return kernel("paged_store", ["words", "addresses"], ["stored"], _STORE, [], 0)


@lru_cache(maxsize=1)
def _load() -> Any:
    return kernel("paged_load", ["addresses", "count"], ["words"], _LOAD, [], 0)


_ADDRESS = "address[0] = reinterpret_cast<int64_t>(words);"


def address(words: mx.array) -> int:
    """Return an array's device address. Waits."""
    [found] = _address()(
        inputs=[words],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
        output_shapes=[(1,)],
        output_dtypes=[mx.int64],
    )
    return int(found.item())


@lru_cache(maxsize=1)
def _address() -> Any:
    return kernel("address", ["words"], ["address"], _ADDRESS, [], 0)
