"""The memory of one model: its pool, its idle agents, and who may begin."""

from collections.abc import Callable, Iterable, Sequence

from agentmem.blockfile import BLOCK_TOKENS
from agentmem.hints import TurnHints
from agentmem.keys import AgentKey
from inference_service.engine.geometry import Geometry
from inference_service.engine.grouping import most_batch_bytes
from inference_service.pool.admission import Admission
from inference_service.pool.blocks import PoolError
from inference_service.pool.hot import HotAgents
from inference_service.pool.kv import KVPool, Table
from inference_service.pool.sizing import Sizes


class ModelMemory:
    """Bookkeeping of a model's KV memory. Event loop only."""

    def __init__(self, geometry: Geometry, weight_bytes: int, sizes: Sizes, hints: TurnHints) -> None:
        """`hints` are those of the whole process: they outlive the model, and are there before it."""
        self.sizes = sizes
        self.pool = KVPool(sizes.space, geometry.window_pieces)
        self.hot = HotAgents(self.pool, hints)
        self.admission = Admission(self.pool, self.hot, self._batch_bytes, sizes.batch_bytes)
        self.evicted: Callable[[], object] = lambda: None
        """Told of each agent whose KV was dropped because somebody asked for it."""
        self._geometry = geometry
        self._weight_bytes = weight_bytes

    def evict(self, key: AgentKey) -> int:
        """Forget an idle agent's KV; the bytes of the pool that are free now because of it."""
        blocks, pieces = self.pool.full.free, self.pool.sliding.free
        if key in self.hot:
            self.evicted()
        self.hot.drop(key)
        freed_blocks, freed_pieces = self.pool.full.free - blocks, self.pool.sliding.free - pieces
        return freed_blocks * BLOCK_TOKENS * self._geometry.bytes_per_token + freed_pieces * self._geometry.piece_bytes

    def check_integrity(self, in_flight: Iterable[Table]) -> None:
        """Where nobody has room: fail the pool unless all references are idle agents' or those of `in_flight`."""
        if not self.admission.idle:
            return
        try:
            self.pool.check_integrity([*self.hot.tables(), *in_flight])
        except PoolError as error:
            self.pool.fail(error)

    def _batch_bytes(self, lengths: Sequence[int]) -> int:
        """The most that decoding sequences of up to these lengths takes: the padded batches, and a copy of one.

        A prompt that is computed is a row too; the copy is made when a row joins or leaves.
        """
        token_bytes, window_bytes = self._geometry.bytes_per_token, self._geometry.window_bytes
        batches = most_batch_bytes(lengths, token_bytes, self._weight_bytes) + len(lengths) * window_bytes
        return 2 * batches
