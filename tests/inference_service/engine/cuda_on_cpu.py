"""Runs what `mx.fast.cuda_kernel` is given on the CPU: the device code itself, compiled by g++ with cuda_on_cpu.h in
the place of CUDA. It proves indices, barriers and arithmetic; what NVIDIA's compiler makes of it, only a GPU can.
"""

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tests.inference_service.engine.compiled_kernels import CompiledKernels

_TYPES = {
    mx.bfloat16: "__nv_bfloat16",
    mx.float16: "__half",
    mx.float32: "float",
    mx.uint32: "uint32_t",
    mx.int32: "int32_t",
    mx.int64: "int64_t",
    mx.bool_: "bool",
}
_AXES = 10
_FLAGS = ("-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-fPIC")
_PTX = re.compile(
    r"^#define ADD_PRODUCT\(.*?[^\\]$|^__device__ __forceinline__ void load_transposed\(.*?^}$", re.M | re.S
)
"""Functions with the GPU's own instructions, which the header replaces."""

_SOURCE = """
#include "cuda_on_cpu.h"
{code}
using Shape = std::array<int32_t, {axes}>;
using Strides = std::array<int64_t, {axes}>;
void kernel({parameters}) {{
{source}
}}
extern "C" bool launch(void** in, const size_t* bytes, const Shape* shapes, const Strides* strides, void** out,
                       const Dim3* grid, const Dim3* block) {{
  std::vector<std::unique_ptr<Guarded>> guarded;
  for (int i = 0; i < {inputs}; ++i) guarded.push_back(std::make_unique<Guarded>(in[i], bytes[i]));
  body = [&] {{ kernel({arguments}); }};
  bool finished = run(*grid, *block);
  for (int i = 0; {writes} && i < {inputs}; ++i) memcpy(in[i], guarded[i]->data, bytes[i]);
  return finished;
}}
"""


class CudaOnCPU:
    """In the place of `mx.fast.cuda_kernel`. Raises RuntimeError for code that g++ refuses or that waits for ever.

    Code is compiled in `directory`. Inputs lie in memory that ends where they do, and are copied back of a kernel
    that writes to them; outputs begin as NaN.
    """

    def __init__(self, directory: Path) -> None:
        self._compiled = CompiledKernels(directory, Path(__file__).with_suffix(".h"), _FLAGS)
        self._libraries: dict[str, Any] = {}

    def __call__(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str,
        ensure_row_contiguous: bool,
    ) -> Callable[..., list[mx.array]]:
        def kernel(
            *,
            inputs: Sequence[mx.array],
            grid: tuple[int, int, int],
            threadgroup: tuple[int, int, int],
            output_shapes: Sequence[Sequence[int]],
            output_dtypes: Sequence[mx.Dtype],
        ) -> list[mx.array]:
            inputs = [mx.contiguous(x) for x in inputs] if ensure_row_contiguous else inputs
            code = _code(input_names, inputs, output_names, output_dtypes, source, header)
            return self._launched(self._library(code), inputs, grid, threadgroup, output_shapes, output_dtypes)

        return kernel

    def _library(self, code: str) -> Any:
        if code not in self._libraries:
            library = ctypes.CDLL(str(self._compiled.file(code)))
            library.launch.restype = ctypes.c_bool
            self._libraries[code] = library
        return self._libraries[code]

    def _launched(
        self,
        library: Any,
        inputs: Sequence[mx.array],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        views = [_view(x) for x in inputs]
        out = [
            np.full(int(np.prod(s)) * t.size, 0xFF, np.uint8) for s, t in zip(output_shapes, output_dtypes, strict=True)
        ]
        blocks = [-(-size // threads) for size, threads in zip(grid, threadgroup, strict=True)]
        arrays = ctypes.c_void_p * len(inputs)
        spans = [sum((n - 1) * step for n, step in zip(v.shape, v.strides, strict=True)) + v.itemsize for v in views]
        finished = library.launch(
            arrays(*(v.ctypes.data for v in views)),
            (ctypes.c_size_t * len(spans))(*spans),
            _axes([v.shape for v in views], ctypes.c_int32),
            _axes([[step // v.itemsize for step in v.strides] for v in views], ctypes.c_int64),
            (ctypes.c_void_p * len(out))(*(x.ctypes.data for x in out)),
            (ctypes.c_uint * 3)(*blocks),
            (ctypes.c_uint * 3)(*threadgroup),
        )
        if not finished:
            raise RuntimeError("threads wait for a barrier that not all of them reach")
        return [
            mx.array(x).view(t).reshape(tuple(s)) for x, s, t in zip(out, output_shapes, output_dtypes, strict=True)
        ]


def _code(
    input_names: Sequence[str],
    inputs: Sequence[mx.array],
    output_names: Sequence[str],
    output_dtypes: Sequence[mx.Dtype],
    source: str,
    header: str,
) -> str:
    """A source file, with the parameters that MLX would give the kernel."""
    parameters, arguments = [], []
    for i, (name, x) in enumerate(zip(input_names, inputs, strict=True)):
        parameters.append(f"const {_TYPES[x.dtype]}* {name}")
        arguments.append(f"static_cast<const {_TYPES[x.dtype]}*>(guarded[{i}]->data)")
        for what, of in (("Shape", "shape"), ("Strides", "strides")):
            if f"{name}_{of}" in source:
                parameters.append(f"const {what} {name}_{of}")
                arguments.append(f"{'shapes' if of == 'shape' else of}[{i}]")
    for i, (name, dtype) in enumerate(zip(output_names, output_dtypes, strict=True)):
        parameters.append(f"{_TYPES[dtype]}* {name}")
        arguments.append(f"static_cast<{_TYPES[dtype]}*>(out[{i}])")
    return _SOURCE.format(
        code=_PTX.sub("", header),
        axes=_AXES,
        parameters=", ".join(parameters),
        source=source,
        inputs=len(inputs),
        writes="true" if "const_cast" in source else "false",
        arguments=", ".join(arguments),
    )


def _view(x: mx.array) -> np.ndarray[Any, Any]:
    """The array's own memory, with its strides; bfloat16 as its bits."""
    mx.eval(x)
    return np.array(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x, copy=False)


def _axes(rows: Sequence[Sequence[int]], kind: Any) -> Any:
    flat = [n for row in rows for n in [*row, *[0] * (_AXES - len(row))]]
    return (kind * len(flat))(*flat)
