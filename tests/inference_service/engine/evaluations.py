"""The operations of everything that is evaluated, as a model of another size would have them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

LARGEST_MATRIX = 4096 * 14336
HEADS_WIDTH = 32 * 128
"""Llama 3.1 8B's, of a feed-forward matrix, and of all heads of queries."""


@dataclass
class Evaluations:
    """Rows that one product has with weights, and pairs of a query and a key that one product has for each head."""

    rows: list[int] = field(default_factory=list)
    pairs: list[int] = field(default_factory=list)

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Compiled functions, which hide what they compute, are computed as they are until `mx.enable_compile`."""
        mx.disable_compile()
        for name in ("eval", "async_eval"):
            patch.setattr(mx, name, self._recording(getattr(mx, name)))

    @property
    def operations(self) -> int:
        """Return the most of one product, in Llama 3.1 8B."""
        return max(*(2 * rows * LARGEST_MATRIX for rows in self.rows), *(2 * n * HEADS_WIDTH for n in self.pairs), 0)

    def _recording(self, evaluate: Any) -> Any:
        def recorded(*arrays: Any) -> None:
            found: list[dict[str, Any]] = []
            wanted = [each for _, each in tree_flatten(list(arrays)) if isinstance(each, mx.array)]
            try:
                mx.export_function(found.append, lambda: wanted)
            except (RuntimeError, ValueError) as error:
                if "primitive Load" not in str(error):  # Weights are only read.
                    raise
            self._count(found)
            evaluate(*arrays)

        return recorded

    def _count(self, nodes: list[dict[str, Any]]) -> None:
        made: dict[str, str] = {}
        for node in nodes:
            if node["type"] != "primitive":
                continue
            name, inputs = node["name"], node["inputs"]
            made.update((output[0], name) for output in node["outputs"])
            for rows, keys in _products(name, inputs):
                if _is_weight(inputs[1][0], made):
                    self.rows.append(rows)
                else:
                    self.pairs.append(rows * keys)


def _products(name: str, inputs: list[Any]) -> Iterator[tuple[int, int]]:
    if name in ("Matmul", "AddMM", "QuantizedMatmul", "GatherQMM", "GatherMM"):
        *batch, rows, _ = inputs[0][1]
        of_heads = len(batch) == 2
        yield (rows if of_heads else rows * math.prod(batch)), inputs[1][1][-1]


def _is_weight(name: str, made: dict[str, str]) -> bool:
    """A constant of the graph, or its transpose."""
    return made.get(name, "Transpose") == "Transpose"
