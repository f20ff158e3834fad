"""What the services are measured against, in a process of its own: the parts of a warm turn, and mlx-lm.

    python -m benchmarks.ttft.in_process MODEL_DIRECTORY SCRATCH_DIRECTORY

Answers questions on stdin (`benchmarks.children`). All of it computes with the same weights and dtype as the worker.
Each measurement begins with an empty cache of MLX's allocator, as the worker's turns do.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, load_prompt_cache, save_prompt_cache
from mlx_lm.utils import load_model

from agentmem.kv import blockfile
from benchmarks import children
from benchmarks.contestants import Ours, Row
from benchmarks.mlx_lm_contestants import MlxLm
from benchmarks.places import Place
from inference_service.engine.geometry import HostTensors
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.product_speeds import ProductSpeeds
from inference_service.storage.blocks import verified

STEPS = 5
KINDS = ("plain", "4 bit")
_SPARE = 8
"""Tokens that an agent may generate besides those that are measured."""


def saved(scratch: Path, kind: str, tokens: int) -> Path:
    """The file in which `cold` saves, and from which `resumed` loads."""
    return scratch / f"{kind.replace(' ', '-')}-{tokens}.safetensors"


class InProcess:
    """One model, under our engine and under mlx-lm. Answers are in seconds and bytes."""

    def __init__(self, directory: Path, scratch: Path) -> None:
        network, _ = load_model(directory)
        if mx.default_device().type == mx.DeviceType.cpu:
            network.set_dtype(mx.float32)  # as the worker does there
        with tempfile.TemporaryDirectory() as remembered:
            self._ours = Ours(network, ProductSpeeds(Path(remembered) / "products.json"))
        if self._ours.geometry.sliding is not None:
            raise SystemExit("the parts are told apart for models whose layers all have full attention only")
        self._network, self._mlx_lm, self._scratch = network, MlxLm(network), scratch

    def parts(self, files: Sequence[str], tokens: int, new_ids: Sequence[int]) -> dict[str, float]:
        """The parts of a next turn of an agent of `tokens` tokens, whose KV is in these files; each alone.

        `hash`: xxh3_128 of the files' bytes, in memory already, one after the other. `prefill`: the engine computes
        the new tokens, all of them. `step`: it decodes one token after them. `engine`: prefill of all but the last and
        the step that feeds it, in one go, up to the first token: no queue, no files, no text.
        """
        host, seconds = self._host_tensors(files)
        sequence = [*([new_ids[0]] * tokens), *new_ids]  # What is in the KV does not matter to time, nor do their ids.

        place = self._ours.places.take(len(sequence) + _SPARE)
        self._ours.store.full.take(place.blocks)

        def restored() -> KVSequence:
            written = zip(place.blocks, host, strict=False)
            return self._ours.store.started(Start(place.blocks, (), tokens, files=list(written)))

        prefill, row = self._prefill(sequence, restored(), place)
        step = self._step(row)
        return {
            "hash": seconds,
            "prefill": prefill,
            "step": step,
            "engine": self._first_token(sequence, restored()),
        }

    def read(self, files: Sequence[str]) -> float:
        """Files as evaluated MLX arrays, unverified: mx.load and mx.eval of exactly these."""
        _empty()
        started = time.perf_counter()
        arrays = [array for path in files for array in mx.load(path).values()]  # type: ignore[union-attr]
        mx.eval(arrays)
        return time.perf_counter() - started

    def cold(self, token_ids: Sequence[int], save: int = 0) -> float:
        """mlx-lm without a cache: a BatchGenerator computes a prompt, up to its first token.

        With `save`, KV of the first so many tokens goes to prompt-cache files of both kinds, for `resumed`.
        """
        computed = self._mlx_lm.prefill(token_ids)
        if save:
            caches = [_cut(cache, save) for cache in computed.row.caches]
            save_prompt_cache(str(saved(self._scratch, "plain", save)), caches)
            save_prompt_cache(
                str(saved(self._scratch, "4 bit", save)),
                [cache.to_quantized(group_size=64, bits=4) for cache in caches],
            )
        return computed.seconds

    def resumed(self, kind: str, tokens: int, new_ids: Sequence[int]) -> float | str:
        """mlx-lm's load_prompt_cache, then its generate_step over the new tokens, up to the first token.

        What MLX says, where it has no kernel for that on this backend.
        """
        try:
            return self._resumed(kind, tokens, new_ids)
        except RuntimeError as error:
            return str(error)

    def _resumed(self, kind: str, tokens: int, new_ids: Sequence[int]) -> float:
        _empty()
        started = time.perf_counter()
        caches = load_prompt_cache(str(saved(self._scratch, kind, tokens)))
        steps = generate_step(mx.array(list(new_ids)), self._network, max_tokens=1, prompt_cache=caches)
        next(steps)
        seconds = time.perf_counter() - started
        steps.close()
        if caches[0].offset < tokens + len(new_ids):
            raise ValueError(f"mlx-lm's cache held {caches[0].offset} tokens after a turn from {tokens}")
        return seconds

    def _host_tensors(self, files: Sequence[str]) -> tuple[list[HostTensors], float]:
        contents = [Path(path).read_bytes() for path in files]
        started = time.perf_counter()
        digests = [blockfile.digest(content) for content in contents]
        seconds = time.perf_counter() - started
        found = []
        for content, digest in zip(contents, digests, strict=True):
            header, _ = blockfile.parse(content, len(content))
            found.append((header.first_token, verified(content, header, digest, self._ours.geometry)))
        return [tensors for _, tensors in sorted(found, key=lambda each: each[0])], seconds

    def _prefill(self, sequence: Sequence[int], kv: KVSequence, place: Place) -> tuple[float, Row]:
        _empty()
        started = time.perf_counter()
        job = self._ours.job(sequence, lambda: kv, 0, reused=kv.length)
        while not job.future.done():
            self._ours.engine.step()
        seconds = time.perf_counter() - started
        return seconds, self._ours.left(job, place)

    def _step(self, row: Row) -> float:
        running = self._ours.running([row], _SPARE + STEPS)
        running.step()
        running.step()
        started = time.perf_counter()
        for _ in range(STEPS):
            running.step()
        return (time.perf_counter() - started) / STEPS

    def _first_token(self, sequence: Sequence[int], kv: KVSequence) -> float:
        first: list[float] = []
        _empty()
        started = time.perf_counter()
        job = self._ours.job(sequence, lambda: kv, 1, lambda _: first.append(time.perf_counter() - started), kv.length)
        while not job.future.done():
            self._ours.engine.step()
        job.future.result()
        return first[0]


def _cut(cache: Any, tokens: int) -> KVCache:
    """A cache of the first tokens only: files are as long as what is in them."""
    cut = KVCache()
    cut.keys, cut.values = (mx.contiguous(side[..., :tokens, :]) for side in (cache.keys, cache.values))
    cut.offset = tokens
    mx.eval(cut.keys, cut.values)
    return cut


def _empty() -> None:
    mx.synchronize()
    mx.clear_cache()


if __name__ == "__main__":
    process = InProcess(Path(sys.argv[1]), Path(sys.argv[2]))
    children.answer({"parts": process.parts, "read": process.read, "cold": process.cold, "resumed": process.resumed})
