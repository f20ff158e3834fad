"""The benchmarks one after the other."""

import shlex
from importlib import import_module

import pytest

from benchmarks.__main__ import NAMES
from benchmarks.series import CPU, GPU


@pytest.mark.parametrize("line", sorted({*CPU, *GPU}))
def test_every_line_is_one_that_its_benchmark_takes(line: str) -> None:
    name, *rest = shlex.split(line.format(model="llama-3.1-8b=/models/x"))
    import_module(NAMES[name]).parser().parse_args(rest)
