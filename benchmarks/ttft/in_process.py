"""mlx-lm over the worker's weights and dtype, in a process of its own that `benchmarks.children` asks.

python -m benchmarks.ttft.in_process MODEL_DIRECTORY SCRATCH_DIRECTORY
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, load_prompt_cache, save_prompt_cache
from mlx_lm.utils import load_model

from benchmarks import children
from benchmarks.mlx_lm_contestants import MlxLm

KINDS = ("plain", "4 bit")


def saved(scratch: Path, kind: str, tokens: int) -> Path:
    return scratch / f"{kind.replace(' ', '-')}-{tokens}.safetensors"


class InProcess:
    def __init__(self, directory: Path, scratch: Path) -> None:
        network, _ = load_model(directory)
        if mx.default_device().type == mx.DeviceType.cpu:
            network.set_dtype(mx.float32)  # as the worker does there
        self._network, self._mlx_lm, self._scratch = network, MlxLm(network), scratch

    def cold(self, token_ids: Sequence[int], save: int = 0) -> float:
        computed = self._mlx_lm.prefill(token_ids)
        if save:
            caches = [_cut(cache, save) for cache in computed.row.caches]
            save_prompt_cache(str(saved(self._scratch, "plain", save)), caches)
            save_prompt_cache(
                str(saved(self._scratch, "4 bit", save)),
                [cache.to_quantized(group_size=64, bits=4) for cache in caches],
            )
        return computed.seconds

    def raw(self, paths: Sequence[str]) -> float:
        mx.clear_cache()
        started = time.perf_counter()
        mx.eval([mx.load(path) for path in paths])
        return time.perf_counter() - started

    def resumed(self, kind: str, tokens: int, new_ids: Sequence[int]) -> float | str:
        """Return seconds of load_prompt_cache and generate_step to the first token, or MLX's error where it has no
        kernel.
        """
        try:
            return self._resumed(kind, tokens, new_ids)
        except RuntimeError as error:
            return str(error)

    def _resumed(self, kind: str, tokens: int, new_ids: Sequence[int]) -> float:
        mx.clear_cache()
        started = time.perf_counter()
        caches = load_prompt_cache(str(saved(self._scratch, kind, tokens)))
        steps = generate_step(mx.array(list(new_ids)), self._network, max_tokens=1, prompt_cache=caches)
        next(steps)
        seconds = time.perf_counter() - started
        steps.close()
        if caches[0].offset < tokens + len(new_ids):
            raise ValueError(f"mlx-lm's cache held {caches[0].offset} tokens after a turn from {tokens}")
        return seconds


def _cut(cache: Any, tokens: int) -> KVCache:
    cut = KVCache()
    cut.keys, cut.values = (mx.contiguous(side[..., :tokens, :]) for side in (cache.keys, cache.values))
    cut.offset = tokens
    mx.eval(cut.keys, cut.values)
    return cut


if __name__ == "__main__":
    process = InProcess(Path(sys.argv[1]), Path(sys.argv[2]))
    children.answer({"cold": process.cold, "raw": process.raw, "resumed": process.resumed})
