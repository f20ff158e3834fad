"""A model's products alone, as MLX computes them: the limit of what a server that computes with MLX can reach here.

`python -m benchmarks.peers.products DIRECTORY ROWS…` prints a JSON object: for each number of rows the seconds in which
all matrices of the layers are multiplied with so many rows, once each and each with its own weights.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import mlx.core as mx

_SAMPLES = 5


def matrices(directory: Path) -> dict[str, mx.array]:
    """The matrices that every token of a prompt is multiplied with: all but embeddings, which are the output's too."""
    found: dict[str, mx.array] = {}
    for path in directory.glob("*.safetensors"):
        arrays = mx.load(str(path))
        assert isinstance(arrays, dict)
        found |= {name: array for name, array in arrays.items() if array.ndim == 2 and ".layers." in name}
    return found


def seconds(weights: list[mx.array], rows: int) -> float:
    """The median time of all products with so many rows, after one to warm up."""
    inputs = {width: mx.random.normal((rows, width)) for width in {weight.shape[1] for weight in weights}}
    mx.eval(inputs, weights)
    times = []
    for _ in range(1 + _SAMPLES):
        began = time.monotonic()
        for weight in weights:
            mx.eval(inputs[weight.shape[1]] @ weight.T)
        times.append(time.monotonic() - began)
    return statistics.median(times[1:])


if __name__ == "__main__":
    loaded = list(matrices(Path(sys.argv[1])).values())
    found = {rows: seconds(loaded, int(rows)) for rows in sys.argv[2:]}
    sys.stdout.write(json.dumps({"parameters": sum(each.size for each in loaded), "seconds": found}) + "\n")
