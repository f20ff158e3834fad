"""Memory of the pool's blocks of one kind, in segments. Engine thread only, except `put` and `read` of host blocks that
no other thread uses.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from agentmem.sizes import byte_size
from inference_service.engine.cuda_copies import Words, driver
from inference_service.engine.device import free_bytes, on_cuda
from inference_service.engine.geometry import HostTensors, TensorBytes
from inference_service.engine.lost_device import wait
from inference_service.engine.paged.kernels import address, load, store
from inference_service.engine.paged.layout import BlockLayout, flat

Placed = tuple[int, int, HostTensors]
"""(block, first token, tensors [layers, kv_heads, n, width] of n tokens)."""

Reading = Callable[[], TensorBytes]
"""Waits for the device, and returns a private copy by tensor name. Any thread, once, while the block is held.

Copies are launched after a pass: waiting took a third of the engine thread's time for 32 prompts of Llama 3.1 8B
(H100).
"""


class Arena(ABC):
    """Segments are allocated when one of their blocks is first used; the first at once. Raises MemoryError."""

    def __init__(self, layout: BlockLayout, blocks: int, segment_blocks: int | None = None) -> None:
        self.layout = layout
        self._blocks = blocks
        self._segment_blocks = segment_blocks or max(1, blocks)
        self._segments: dict[int, mx.array] = {}
        self.take([0])

    @staticmethod
    def of(layout: BlockLayout, blocks: int, segment_blocks: int | None = None) -> "Arena":
        kind = DeviceArena if on_cuda() else HostArena
        return kind(layout, blocks, segment_blocks)

    @property
    def nbytes(self) -> int:
        return sum(int(segment.nbytes) for segment in self._segments.values())

    def take(self, blocks: Iterable[int]) -> None:
        for segment in sorted({block // self._segment_blocks for block in blocks} - self._segments.keys()):
            count = min(self._segment_blocks, self._blocks - segment * self._segment_blocks)
            nbytes = count * self.layout.nbytes
            if nbytes > free_bytes():
                mx.clear_cache()
                if nbytes > (free := free_bytes()):
                    raise MemoryError(
                        f"a segment of the pool takes {byte_size(nbytes)}, and {byte_size(free)} are free"
                    )
            words = mx.zeros((count, self.layout.words), dtype=mx.uint32)
            mx.eval(words)
            self._segments[segment] = words
            self._taken(segment, words)

    def has(self, blocks: Iterable[int]) -> bool:
        """Any thread."""
        return {block // self._segment_blocks for block in blocks} <= self._segments.keys()

    def release(self, segments: Iterable[int]) -> None:
        """Waits for the device."""
        wait()
        for segment in segments:
            self._segments.pop(segment, None)

    def close(self) -> None:
        self.release(list(self._segments))

    def _place(self, block: int) -> tuple[int, int]:
        segment, place = divmod(block, self._segment_blocks)
        if segment not in self._segments:
            raise self._missing(segment)
        return segment, place

    @staticmethod
    def _missing(segment: int) -> LookupError:
        return LookupError(f"segment {segment} of the pool has no memory: nothing was written there")

    @abstractmethod
    def _taken(self, segment: int, words: mx.array) -> None:
        """Note a new segment's memory."""

    @abstractmethod
    def put(self, placed: Sequence[Placed]) -> None:
        """Copy host tensors to allocated blocks; done on return."""

    def read(self, block: int, tokens: int) -> Reading:
        words = self._begun(block)
        return lambda: self.layout.read(words(), tokens)

    def read_run(self, blocks: Sequence[int], start: int, end: int) -> Reading:
        tokens = next(iter(self.layout.tensors.values())).shape[2]
        first = start // tokens * tokens
        begun = [self._begun(block) for block in blocks]

        def made() -> TensorBytes:
            parts = [self.layout.views(words()) for words in begun]
            joined = {name: np.concatenate([part[name] for part in parts], axis=2) for name in self.layout.tensors}
            return flat({name: whole[:, :, start - first : end - first] for name, whole in joined.items()})

        return made

    def arrays(self, blocks: Sequence[int], tokens: int) -> dict[str, npt.NDArray[Any]]:
        """Return a private copy of a table's first `tokens` tokens, [layers, kv_heads, tokens, width]."""
        parts = [self.layout.views(words()) for words in [self._begun(block) for block in blocks]]
        return {
            name: np.concatenate([part[name] for part in parts], axis=2)[:, :, :tokens] for name in self.layout.tensors
        }

    @abstractmethod
    def _begun(self, block: int) -> Callable[[], Words]:
        """Begin to copy a block to host memory. Any thread may call the result for [words], maybe the block's own
        memory.
        """

    @abstractmethod
    def copy(self, source: int, target: int) -> None:
        """Passes launched later see the copy."""


class HostArena(Arena):
    def _taken(self, segment: int, words: mx.array) -> None:
        """Nothing to note: the host reads segments directly."""

    def words(self, block: int) -> Words:
        segment, place = self._place(block)
        words: Words = np.asarray(memoryview(cast(Any, self._segments[segment])))[place]
        return words

    def put(self, placed: Sequence[Placed]) -> None:
        for block, first, tensors in placed:
            self.layout.put(self.words(block), tensors, first)

    def _begun(self, block: int) -> Callable[[], Words]:
        words = self.words(block)
        return lambda: words

    def copy(self, source: int, target: int) -> None:
        self.words(target)[:] = self.words(source)


class DeviceArena(Arena):
    def __init__(self, layout: BlockLayout, blocks: int, segment_blocks: int | None = None) -> None:
        self._bases: dict[int, int] = {}
        super().__init__(layout, blocks, segment_blocks)

    def _taken(self, segment: int, words: mx.array) -> None:
        self._bases[segment] = address(words)

    def release(self, segments: Iterable[int]) -> None:
        released = list(segments)
        super().release(released)
        for segment in released:
            self._bases.pop(segment, None)

    def addresses(self, blocks: Sequence[int]) -> npt.NDArray[np.int64]:
        """Raises LookupError for a block that is not allocated."""
        bases, segment_blocks, nbytes = self._bases, self._segment_blocks, self.layout.nbytes
        try:
            found = [bases[block // segment_blocks] + block % segment_blocks * nbytes for block in blocks]
        except KeyError as error:
            raise self._missing(error.args[0]) from None
        return np.array(found, np.int64)

    def put(self, placed: Sequence[Placed]) -> None:
        """Waits for passes, which may still write there."""
        if not placed:
            return
        wait()
        words = driver().page_locked(self.layout.words)
        for block, first, tensors in placed:
            [to] = self.addresses([block])
            if first:
                driver().to_host(to, words)
            self.layout.put(words, tensors, first)
            driver().to_device(words, to)

    def copy(self, source: int, target: int) -> None:
        old, new = (mx.array(self.addresses([block])) for block in (source, target))
        # The device runs launches in order anyway.
        mx.async_eval(store(load(old, self.layout.words), new))  # type: ignore[no-untyped-call]

    def _begun(self, block: int) -> Callable[[], Words]:
        [at] = self.addresses([block])
        launched = mx.zeros(1) + 1
        mx.async_eval(launched)  # type: ignore[no-untyped-call]

        def copied() -> Words:
            mx.eval(launched)
            words = np.empty(self.layout.words, np.uint32)
            driver().to_host(at, words)
            return words

        return copied
