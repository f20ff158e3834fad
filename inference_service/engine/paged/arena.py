"""The memory of the pool's blocks of one kind: segments of them, and their way to files and back. Engine thread, but
for `put` and `read` of blocks in host memory, which no thread else uses meanwhile.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from agentmem.sizes import byte_size
from inference_service.engine.device import free_bytes, has_own_memory
from inference_service.engine.geometry import HostTensors, TensorBytes
from inference_service.engine.paged.kernels import address, load, store
from inference_service.engine.paged.layout import BlockLayout, HostTensor, flat
from inference_service.engine.tensor_file import Entry, TensorFile

_AT_ONCE: Final = 16 << 20
"""Bytes of blocks that are copied to a device's own memory as one tensor. glibc takes 32 MiB and more from the system
each time."""

Placed = tuple[int, int, HostTensors]
"""A block, the first token in it that is written, and the tensors [layers, kv_heads, n, width] of n tokens."""

Words = npt.NDArray[np.uint32]


class Reading:
    """Blocks on their way to a file.

    What was begun behind a pass is there when the pass is: to wait for it at once leaves the device idle until the
    next. Then any thread may make the tensors, which costs more than all before, as long as the blocks are held.
    """

    def __init__(self, begun: Sequence[Callable[[], Words]], made: Callable[[Sequence[Words]], TensorBytes]) -> None:
        self._begun, self._made = begun, made
        self._words: list[Words] = []
        self.beside: Callable[[], TensorBytes] = dict
        """Returns tensors that are in no block. Engine thread."""
        self._others: TensorBytes = {}

    def wait(self) -> None:
        """Wait for the device. Engine thread."""
        begun, beside = self._begun, self.beside
        self._begun, self.beside = (), dict  # They hold what was copied on the device.
        self._words, self._others = [words() for words in begun], beside()

    def tensors(self) -> TensorBytes:
        """Return a private copy as the tensors of a file by name; what was read is let go."""
        words, self._words = self._words, []
        return {**self._made(words), **self._others}

    def __call__(self) -> TensorBytes:
        """Do both. Engine thread."""
        self.wait()
        return self.tensors()


class Arena(ABC):
    """`blocks` blocks, `segment_blocks` of them in a segment; by default all are in one.

    A segment's memory is taken when a block of it is used first, the first one's at once. Raises MemoryError where the
    device has less.
    """

    def __init__(self, layout: BlockLayout, blocks: int, segment_blocks: int | None = None) -> None:
        self.layout = layout
        self._blocks = blocks
        self._segment_blocks = segment_blocks or max(1, blocks)
        self._segments: dict[int, mx.array] = {}
        self.take([0])

    @staticmethod
    def of(layout: BlockLayout, blocks: int, segment_blocks: int | None = None) -> "Arena":
        """One in the memory of the device."""
        kind = DeviceArena if has_own_memory() else HostArena
        return kind(layout, blocks, segment_blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of all segments that are taken."""
        return sum(int(segment.nbytes) for segment in self._segments.values())

    def take(self, blocks: Iterable[int]) -> None:
        """Take the memory of these blocks' segments, unless it is there."""
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
        """Whether the memory of all these blocks is taken. Any thread."""
        return {block // self._segment_blocks for block in blocks} <= self._segments.keys()

    def release(self, segments: Iterable[int]) -> None:
        """Give back the memory of segments in which nothing counts. Waits for what reads there still."""
        mx.synchronize()
        for segment in segments:
            self._segments.pop(segment, None)

    def close(self) -> None:
        """Release the memory. The arena must not be used afterwards."""
        self.release(list(self._segments))

    def _place(self, block: int) -> tuple[int, int]:
        """A block's segment, and its place there."""
        segment, place = divmod(block, self._segment_blocks)
        if segment not in self._segments:
            raise self._missing(segment)
        return segment, place

    @staticmethod
    def _missing(segment: int) -> LookupError:
        return LookupError(f"segment {segment} of the pool has no memory: nothing was written there")

    @abstractmethod
    def _taken(self, segment: int, words: mx.array) -> None:
        """Note the memory of a segment."""

    @abstractmethod
    def put(self, placed: Sequence[Placed]) -> None:
        """Copy tensors in host memory to blocks, whose memory is taken; it is done on return."""

    def read(self, block: int, tokens: int) -> Reading:
        """Begin to read the first `tokens` tokens of a block."""
        return Reading([self._begun(block)], lambda words: self.layout.read(words[0], tokens))

    def read_run(self, blocks: Sequence[int], start: int, end: int) -> Reading:
        """Begin to read the tokens from position `start` up to `end` in blocks of a table."""
        tokens = next(iter(self.layout.tensors.values())).shape[2]
        first = start // tokens * tokens

        def made(words: Sequence[Words]) -> TensorBytes:
            parts = [self.layout.views(each) for each in words]
            joined = {name: np.concatenate([part[name] for part in parts], axis=2) for name in self.layout.tensors}
            return flat({name: whole[:, :, start - first : end - first] for name, whole in joined.items()})

        return Reading([self._begun(block) for block in blocks], made)

    def arrays(self, blocks: Sequence[int], tokens: int) -> dict[str, HostTensor]:
        """A private copy of the first `tokens` tokens in blocks of a table, [layers, kv_heads, tokens, width]."""
        parts = [self.layout.views(words()) for words in [self._begun(block) for block in blocks]]
        return {
            name: np.concatenate([part[name] for part in parts], axis=2)[:, :, :tokens] for name in self.layout.tensors
        }

    @abstractmethod
    def _begun(self, block: int) -> Callable[[], Words]:
        """Begin to copy a block to host memory; the function returns it [words], which may be the block's own."""

    @abstractmethod
    def copy(self, source: int, target: int) -> None:
        """Copy a block to another, whose memory is taken. Passes that are launched later see it."""


class HostArena(Arena):
    """In memory that is the host's, too."""

    def _taken(self, segment: int, words: mx.array) -> None:
        """Nothing: it is seen as it is."""

    def words(self, block: int) -> Words:
        """A block's own memory [words]."""
        segment, place = self._place(block)
        words: Words = np.asarray(memoryview(cast(Any, self._segments[segment])))[place]
        return words

    def placed(self, tables: Sequence[Sequence[int]]) -> tuple[list[mx.array], npt.NDArray[np.int32]]:
        """The segments in which these tables' blocks lie, at least one, and of each block its segment, counted through
        these, and its place there: [tables, n, 2], zeros behind a table's end."""
        found = np.zeros((len(tables), max(1, *map(len, tables)), 2), np.int32)
        order: dict[int, int] = {}
        for row, table in enumerate(tables):
            for at, block in enumerate(table):
                segment, place = self._place(block)
                found[row, at] = order.setdefault(segment, len(order)), place
        return [self._segments[segment] for segment in order or list(self._segments)[:1]], found

    def put(self, placed: Sequence[Placed]) -> None:
        for block, first, tensors in placed:
            self.layout.put(self.words(block), tensors, first)

    def _begun(self, block: int) -> Callable[[], Words]:
        return partial(self.words, block)

    def copy(self, source: int, target: int) -> None:
        self.words(target)[:] = self.words(source)


class DeviceArena(Arena):
    """In memory of the device's own, which kernels write and read by address."""

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
        """Where these blocks begin, whose memory is taken."""
        bases, segment_blocks, nbytes = self._bases, self._segment_blocks, self.layout.nbytes
        try:
            found = [bases[block // segment_blocks] + block % segment_blocks * nbytes for block in blocks]
        except KeyError as error:
            raise self._missing(error.args[0]) from None
        return np.array(found, np.int64)

    def put(self, placed: Sequence[Placed]) -> None:
        """Blocks that are not written from their first token on are read first."""
        step = max(1, _AT_ONCE // self.layout.nbytes)
        for at in range(0, len(placed), step):
            some = placed[at : at + step]
            to = mx.array(self.addresses([block for block, _, _ in some]))
            old = [self._begun(block)() if first else None for block, first, _ in some]
            mx.eval(store(_Blocks(self.layout, some, old).words(), to))

    def copy(self, source: int, target: int) -> None:
        old, new = (mx.array(self.addresses([block])) for block in (source, target))
        # Not waited for: the device would be idle meanwhile, and takes what is launched one after the other.
        mx.async_eval(store(load(old, self.layout.words), new))  # type: ignore[no-untyped-call]

    def _begun(self, block: int) -> Callable[[], Words]:
        words = load(mx.array(self.addresses([block])), self.layout.words)
        mx.async_eval(words)  # type: ignore[no-untyped-call]
        return lambda: np.array(words, copy=False)[0]


class _Blocks(TensorFile):
    """Blocks with new tokens in them, made while MLX reads them: `mx.array` of host memory moves its pages to a GPU one
    fault at a time."""

    def __init__(self, layout: BlockLayout, placed: Sequence[Placed], old: Sequence[Words | None]) -> None:
        self._layout, self._placed, self._old = layout, placed, old
        self._failure: Exception | None = RuntimeError("MLX read nothing of blocks that were in memory")
        entry: Entry = "U32", (len(placed), layout.words), len(placed) * layout.nbytes
        super().__init__({"blocks": entry})

    def words(self) -> mx.array:
        """The blocks [n, words], evaluated. Raises what went wrong when they were made."""
        [array] = self.load().values()
        mx.eval(array)
        if self._failure is not None:
            raise self._failure
        return array

    def fill(self, start: int, view: memoryview) -> None:  # noqa: ARG002 - there is one tensor
        try:
            whole = np.frombuffer(view, np.uint32).reshape(len(self._placed), -1)
            for words, old, (_, first, tensors) in zip(whole, self._old, self._placed, strict=True):
                if old is not None:
                    words[:] = old
                self._layout.put(words, tensors, first)
            self._failure = None
        except Exception as error:  # noqa: BLE001 - no exception may leave MLX's thread
            self._failure = error
