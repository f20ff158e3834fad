"""Runs what `mx.fast.metal_kernel` is given on the CPU: the source that MLX makes of it, compiled by g++ as C++14 with
metal_on_cpu.h in the place of Metal, and with its sanitizers of addresses and undefined behaviour. It proves indices,
barriers and arithmetic; what Apple's compiler makes of it, only a Mac can.

MLX writes kernels' signatures where it exports functions, also where it has no Metal, so they are its own.
"""

import os
import re
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from tests.inference_service.engine.compiled_kernels import CompiledKernels

metal_kernel = mx.fast.metal_kernel
"""MLX's own, whatever stands in its place."""

_AXES = 10
_FLAGS = (
    *("-std=c++14", "-pedantic-errors", "-fno-exceptions", "-fno-rtti"),
    *("-Wall", "-Wextra", "-Wdouble-promotion", "-Wvla", "-Wno-unknown-pragmas", "-Wno-attributes", "-Werror"),
    *("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "--param", "asan-stack=0"),
)
_OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "LD_PRELOAD": ""}
"""Of the sanitizer of addresses, which wants to come first."""
_PARAMETER = re.compile(r"^  (const )?(device|constant) (\w+)\* (\w+) \[\[buffer\(\d+\)\]\]", re.M)
_ATTRIBUTE = re.compile(r"^  (uint3?) (\w+) \[\[(\w+)\]\]", re.M)
THREADGROUP_ARRAY = re.compile(r"^\s*threadgroup (\w+) (\w+)(\[.+\]);", re.M)
_ATTRIBUTES = {
    "threadgroup_position_in_grid": "uint3{blockIdx.x, blockIdx.y, blockIdx.z}",
    "threadgroups_per_grid": "uint3{gridDim.x, gridDim.y, gridDim.z}",
    "simdgroup_index_in_threadgroup": "current / 32",
    "thread_index_in_simdgroup": "current % 32",
}


class Launch(NamedTuple):
    """A launch of a kernel: MLX's source, its grid in threads and its threadgroup, and memory of that in bytes."""

    source: str
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    bytes: int


class MetalOnCPU:
    """In the place of `mx.fast.metal_kernel`. Raises RuntimeError for code that g++ refuses, that touches what is not
    its own, or that waits for ever.

    Code is compiled in `directory`. Outputs and threadgroup memory begin as NaN. `launches` has all there were.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._compiled = CompiledKernels(directory, Path(__file__).with_suffix(".h"), _FLAGS, _OPTIONS)
        self.launches: list[Launch] = []

    def __call__(self, **kernel: Any) -> Callable[..., list[mx.array]]:
        made = metal_kernel(**kernel)

        def launched(
            *,
            inputs: Sequence[mx.array],
            grid: tuple[int, int, int],
            threadgroup: tuple[int, int, int],
            output_shapes: Sequence[Sequence[int]],
            output_dtypes: Sequence[mx.Dtype],
        ) -> list[mx.array]:
            assert not any(size % threads for size, threads in zip(grid, threadgroup, strict=True))
            how = {"output_shapes": output_shapes, "output_dtypes": output_dtypes}
            source = _source(made, inputs, {"grid": grid, "threadgroup": threadgroup, **how})
            program = self._compiled.file(_program(source, kernel["input_names"]), shared=False)
            into, out = self._directory / "launch", self._directory / "results"
            into.write_bytes(_launch(inputs, grid, threadgroup, output_shapes, output_dtypes))
            _run(str(program), str(into), str(out))
            results = out.read_bytes()
            self.launches.append(Launch(source, grid, threadgroup, struct.unpack("<Q", results[-8:])[0]))
            return _outputs(results, output_shapes, output_dtypes)

        return launched


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **_OPTIONS})
    if done.returncode:
        raise RuntimeError(done.stderr)


def _source(made: Any, inputs: Sequence[mx.array], how: dict[str, Any]) -> str:
    """MLX's source of a kernel for such inputs."""
    found = []

    def note(step: dict[str, Any]) -> None:
        if step.get("name") == "CustomKernel":
            found.append(step["arguments"][1])

    mx.export_function(note, lambda *arrays: made(inputs=list(arrays), **how), *inputs)
    [source] = found
    return str(source)


def _program(source: str, input_names: Sequence[str]) -> str:
    """A source file that calls the kernel, whose threadgroup arrays are static."""
    name = re.search(r"\[\[kernel\]\] void (\w+)\(", source)
    assert name is not None
    arguments, outputs = [], 0
    for const, _, kind, parameter in _PARAMETER.findall(source):
        if parameter in input_names:
            arguments.append(f"static_cast<const {kind}*>(inputs[{input_names.index(parameter)}].data)")
        elif const:
            of, _, what = parameter.rpartition("_")
            arguments.append(f"inputs[{input_names.index(of)}].{what}")
        else:
            arguments.append(f"static_cast<{kind}*>(outputs[{outputs}])")
            outputs += 1
    arguments += [_ATTRIBUTES[attribute] for _, attribute, _ in _ATTRIBUTE.findall(source)]
    static = THREADGROUP_ARRAY.sub(r"static \1 \2\3; static ThreadgroupArray \2_array(\2);", source)
    return f'#include "metal_on_cpu.h"\n{static}\nvoid call_kernel() {{ {name[1]}({", ".join(arguments)}); }}\n'


def _launch(
    inputs: Sequence[mx.array],
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[mx.Dtype],
) -> bytes:
    """As `main` of metal_on_cpu.h reads it."""
    blocks = (size // threads for size, threads in zip(grid, threadgroup, strict=True))
    parts = [struct.pack("<6IQ", *blocks, *threadgroup, len(inputs))]
    for x in inputs:
        mx.eval(x)
        view = np.array(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x, copy=False)
        size = sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True)) + view.itemsize
        missing = (0,) * (_AXES - view.ndim)
        strides = (step // view.itemsize for step in view.strides)
        parts.append(struct.pack(f"<Q{_AXES}i{_AXES}q", size, *view.shape, *missing, *strides, *missing))
        parts.append(bytes((np.ctypeslib.ctypes.c_char * size).from_address(view.ctypes.data)))
    sizes = [int(np.prod(s)) * t.size for s, t in zip(output_shapes, output_dtypes, strict=True)]
    return b"".join([*parts, struct.pack(f"<{len(sizes) + 1}Q", len(sizes), *sizes)])


def _outputs(results: bytes, shapes: Sequence[Sequence[int]], dtypes: Sequence[mx.Dtype]) -> list[mx.array]:
    found, at = [], 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        size = int(np.prod(shape)) * dtype.size
        found.append(mx.array(np.frombuffer(results, np.uint8, size, at)).view(dtype).reshape(tuple(shape)))
        at += size
    return found
