"""What the Metal Shading Language has not of C++14, and what a launch may take, as far as the source shows it."""

import re
import shutil
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from agentmem.kv.bits import BITS
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.metal_kernel import available
from inference_service.engine.paged import metal_attention
from inference_service.engine.paged.kernels import PagedGroup
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.paged.metal_attention import MOST_SEGMENTS, THREADGROUP_BYTES, THREADGROUP_THREADS
from inference_service.engine.quantization import PLAIN, KVFormat
from tests.inference_service.engine.metal_on_cpu import THREADGROUP_ARRAY, Launch, MetalOnCPU
from tests.inference_service.engine.test_metal_kernels import Rows, error_of

NOT_METAL = (
    r"\b(double|virtual|new|delete|try|catch|throw|goto|typeid|dynamic_cast|thread_local|std|asm|long double)\b",
    r"\[[&=]?\]\s*[({]",  # a lambda
    r"\bif constexpr\b",
    r"\b_\w+",  # CUDA's and g++'s own
    r"\b\d+\.\d*(e-?\d+)?(?![\w.])",  # a number that would be double
    r"\bstatic (?!constant constexpr|assert)",
)
BUFFERS = 31
"""That a kernel of Metal may have."""
SPACES = re.compile(r"\b(device|constant|threadgroup|thread)\b")


@pytest.fixture
def launches(metal_kernels: None, metal_on_cpu: MetalOnCPU) -> list[Launch]:
    """Of kernels with all that can be there, over so little that some of it is `constant`; and with nothing of it."""
    if available():
        pytest.skip("of kernels as g++ compiles them")
    before = len(metal_on_cpu.launches)
    error_of(3, 1)
    rows = Rows([700, 9], KVCodec(KVFormat(3, 5, 32, PLAIN)), 96, dtype=mx.bfloat16)
    rows.attend(mx.zeros((2, 3, 1, 96), mx.bfloat16), 1.0)
    return metal_on_cpu.launches[before:]


@pytest.mark.slow
def test_nothing_is_there_that_metal_does_not_have(launches: list[Launch]) -> None:
    assert len(launches) == 4
    for launch in launches:
        for pattern in NOT_METAL:
            assert not re.search(pattern, launch.source), pattern


@pytest.mark.slow
def test_no_function_calls_itself(launches: list[Launch]) -> None:
    for launch in launches:
        parts = re.split(r"^inline [\w<>, ]+? (\w+)\(", launch.source, flags=re.M)
        assert len(parts) > 10
        for name, rest in zip(parts[1::2], parts[2::2], strict=True):
            assert not re.search(rf"\b{name}\b", rest.partition("[[kernel]]")[0]), name


def test_arrays_of_threadgroups_are_declared_in_kernels(launches: list[Launch]) -> None:
    for launch in launches:
        functions, _, kernel = launch.source.partition("[[kernel]]")
        assert not THREADGROUP_ARRAY.search(functions)
        assert THREADGROUP_ARRAY.search(kernel)


def test_all_pointers_and_references_say_their_address_space(launches: list[Launch]) -> None:
    for launch in launches:
        pieces = [re.sub(r"<[^<>]*>", "", launch.source), *re.findall(r"<([^<>]*)>", launch.source)]
        found = [m[0] for piece in pieces for m in re.finditer(r"[^,(;{}\n]*\w[*&]+(?=[\s),]|$)", piece)]
        assert len(found) > 10
        for each in found:
            assert SPACES.search(each), each


@pytest.mark.skipif(not shutil.which("clang++"), reason="address spaces are checked by clang++")
def test_pointers_keep_to_their_address_spaces(launches: list[Launch], tmp_path: Path) -> None:
    headers = Path(__file__).parent
    for launch in launches:
        source = THREADGROUP_ARRAY.sub(r"static threadgroup \1 \2\3;", launch.source)
        path = tmp_path / "kernel.cpp"
        path.write_text(f'#include "metal_spaces.h"\n{source}')
        flags = ("-std=c++14", "-pedantic-errors", "-ffreestanding", "-w", "-fsyntax-only", f"-I{headers}")
        done = subprocess.run(["clang++", *flags, str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_launches_are_what_metal_allows(launches: list[Launch]) -> None:
    for launch in launches:
        assert 0 < launch.bytes <= THREADGROUP_BYTES
        threads = launch.threadgroup[0] * launch.threadgroup[1] * launch.threadgroup[2]
        assert threads % 32 == 0 and threads <= THREADGROUP_THREADS


@pytest.mark.slow
def test_a_kernel_takes_no_more_buffers_than_metal_has(metal_kernels: None, metal_on_cpu: MetalOnCPU) -> None:
    if available():
        pytest.skip("of kernels as g++ compiles them")
    rows = Rows([64 * (MOST_SEGMENTS - 1)], KVCodec(KVFormat(4, 4, 32)))
    assert len(rows.arena.placed(rows.tables)[0]) > MOST_SEGMENTS // 2
    before = len(metal_on_cpu.launches)
    rows.attend(mx.zeros((1, 1, 1, 64)), 1.0)
    for launch in metal_on_cpu.launches[before:]:
        numbers = [int(number) for number in re.findall(r"\[\[buffer\((\d+)\)\]\]", launch.source)]
        assert sorted(numbers) == list(range(len(numbers))) and len(numbers) <= BUFFERS
    assert f"segment_{MOST_SEGMENTS - 1}" in metal_on_cpu.launches[before].source


def test_all_that_is_not_refused_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metal_attention, "kernel", lambda *told: told)
    fits = 0
    widths = (32, 64, 80, 96, 128, 192, 256, 512, 576, 1024, 2048)
    for heads, k_dim, v_dim, bits in product((1, 3, 8, 64), widths, widths, zip(BITS, reversed(BITS), strict=True)):
        for by in (KVFormat(*bits, 32), KVFormat(*bits, 64, PLAIN)):
            full = LayerGroup((0,), 1, k_dim, v_dim)
            try:
                made = Geometry(heads, mx.bfloat16, by, full)
                group = PagedGroup.of(made, full, BlockLayout(made.block_shapes(256)), 256)
                kernel: Any = metal_attention._chunks_kernel.__wrapped__(group, heads, 1.0, 2)
            except ValueError:
                continue
            (kind, _, size) = THREADGROUP_ARRAY.search(kernel[0][3]).groups()  # type: ignore[union-attr]
            assert kind == "float" and 4 * int(size.strip("[]")) <= THREADGROUP_BYTES
            assert v_dim <= THREADGROUP_THREADS and not heads % kernel[1]
            fits += 1
    assert fits > 1000
