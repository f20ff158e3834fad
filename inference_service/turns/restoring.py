"""Finding the KV that a plan can reuse: from the pool, then from disk, then from the object store, else none."""

import time
from collections.abc import Mapping

from agentmem.keys import AgentKey
from agentmem.v1 import types_pb2
from inference_service.engine.arenas import HostTensors
from inference_service.engine.caches import KVBuffers
from inference_service.engine.geometry import Caches
from inference_service.memory.choice import Choice
from inference_service.memory.match import Reason
from inference_service.metrics import WorkerMetrics
from inference_service.models.loading import LoadedModel
from inference_service.pool.admission import Room
from inference_service.storage.client import FileName
from inference_service.turns.fetching import Fetcher
from inference_service.turns.planned import Planned, Reuse
from inference_service.turns.search import Search


class Restorer:
    """Decides and loads. Event loop only."""

    def __init__(self, fetcher: Fetcher, metrics: WorkerMetrics, min_tokens: int) -> None:
        self._fetcher = fetcher
        self._metrics = metrics
        self._min_tokens = min_tokens

    async def find(self, key: AgentKey, model: LoadedModel, planned: Planned, room: Room) -> Reuse:
        """Reuse the longest gapless run of blocks, those in the pool first; `room` then holds these.

        A hybrid model resumes only where there is a window. Never raises for what is missing or bad: that is a miss.
        """
        started = time.monotonic()
        search = Search.in_pool(key, model, planned)
        search.hold(room)
        reason = await self._look(search, key, planned)
        files: dict[FileName, HostTensors] = {}
        choice, fault = await self._read(search, files)
        reason = self._reason(search, planned, choice, fault or reason)
        if not choice.tokens:
            return Reuse(model.new_caches, reason)
        wanted = search.wanted(choice)
        size = sum(file.size_bytes for _, file in wanted)
        remote = search.remote_tokens(choice)
        self._metrics.load_bytes.labels(model.model_id).inc(size)
        return Reuse(
            _Maker(
                model,
                search,
                choice,
                {name: files[name] for name in (FileName.of(h) for h, _ in wanted)},
                room=len(planned.plan.sequence) + 1,
            ),
            reason,
            choice.hot_tokens,
            choice.warm_tokens - remote,
            remote,
            size,
            time.monotonic() - started if wanted else 0.0,
            search.windows_on_disk(planned.plan.keep_tokens),
        )

    def loaded(self, model: LoadedModel, seconds: float) -> None:
        """Count that what `find` found was assembled, where no turn does."""
        self._metrics.load_seconds.labels(model.model_id).observe(seconds)

    async def probe(self, key: AgentKey, model: LoadedModel, planned: Planned) -> Reuse:
        """What `find` would reuse if every file is good. Holds nothing, reads no file, and counts as no use."""
        search = Search.in_pool(key, model, planned)
        reason = await self._look(search, key, planned, peek=True)
        choice, below = self._choose(search)
        reason = self._reason(search, planned, choice, below or reason)
        size = sum(file.size_bytes for _, file in search.wanted(choice))
        remote = search.remote_tokens(choice)
        return Reuse(model.new_caches, reason, choice.hot_tokens, choice.warm_tokens - remote, remote, size)

    async def _look(self, search: Search, key: AgentKey, planned: Planned, *, peek: bool = False) -> Reason:
        """Ask the store, if it could have more than the pool; why there is not more, as far as the store knows."""
        choice = search.choose()
        if choice.tokens >= planned.plan.keep_tokens and not search.may_have_more(choice):
            return types_pb2.MISS_REASON_UNSPECIFIED
        opened, reason = await self._fetcher.look(
            key.namespace,
            key.model_id,
            [name for name in search.lookup.hashes() if name not in search.blocks],
            [candidate.name for candidate in search.candidates],
            peek,
        )
        search.take(opened)
        if reason or not (missing := search.missing):
            return reason
        if not opened.evicted.isdisjoint(missing):
            return types_pb2.MISS_REASON_EVICTED
        return types_pb2.MISS_REASON_INCOMPATIBLE if planned.incompatible else types_pb2.MISS_REASON_ABSENT

    def _choose(self, search: Search) -> tuple[Choice, Reason]:
        """The most that is worth it: a few tokens of a file are not."""
        choice = search.choose()
        if not 0 < choice.warm_tokens < self._min_tokens:
            return choice, types_pb2.MISS_REASON_UNSPECIFIED
        search.files.clear()
        return search.choose(), types_pb2.MISS_REASON_BELOW_MIN

    async def _read(self, search: Search, files: dict[FileName, HostTensors]) -> tuple[Choice, Reason]:
        """Choose, and read what was chosen, again and again until all of it is good; why it is not more."""
        fault: Reason = types_pb2.MISS_REASON_UNSPECIFIED
        while True:
            choice, below = self._choose(search)
            if missing := await self._bring(search, choice):
                fault = types_pb2.MISS_REASON_IO_ERROR
                for name in missing:
                    search.refuse(name)
                continue
            wanted = [(header, file) for header, file in search.wanted(choice) if FileName.of(header) not in files]
            model = search.model
            read, bad = await self._fetcher.read(model.geometry, search.namespace, model.model_id, wanted)
            files |= read
            if not bad:
                return choice, fault or below
            fault = next(iter(bad.values()))
            for name in bad:
                search.refuse(name)

    async def _bring(self, search: Search, choice: Choice) -> list[FileName]:
        """Bring what was chosen from the object store to the disk; what does not come."""
        names = [FileName.of(header) for header, file in search.wanted(choice) if not file.path]
        fetched = await self._fetcher.bring(search.namespace, names) if names else {}
        for name in fetched:
            search.take_fetched(name, fetched[name])
        return [name for name in names if name not in fetched]

    def _reason(self, search: Search, planned: Planned, choice: Choice, reason: Reason) -> Reason:
        if choice.tokens < planned.plan.keep_tokens <= search.block_tokens:
            reason = reason or types_pb2.MISS_REASON_NOT_TRIMMABLE
        return reason if choice.tokens else reason or types_pb2.MISS_REASON_ABSENT


class _Maker:
    """Makes caches of what was chosen, once, on the engine thread. It holds the files' tensors until then.

    They have room for `room` tokens: all of the prompt, and the first that is generated.
    """

    def __init__(
        self, model: LoadedModel, search: Search, choice: Choice, files: dict[FileName, HostTensors], room: int
    ) -> None:
        self._model = model
        self._choice = choice
        self._blocks = [search.blocks[candidate.header.chain_hash] for candidate in choice.hot]
        self._window = search.windows.get(choice.window.name) if choice.window is not None else None
        self._files = files
        self._room = room

    def __call__(self) -> Caches:
        files, self._files = self._files, {}
        warm = [files[FileName.of(candidate.header)] for candidate in self._choice.warm]
        window = self._window_buffers(files)
        return self._model.arenas.caches(self._choice.tokens, self._blocks, warm, window, self._room)

    def _window_buffers(self, files: Mapping[FileName, HostTensors]) -> list[KVBuffers]:
        choice, arenas = self._choice, self._model.arenas
        if choice.window is None:
            return []
        if self._window is not None:
            return arenas.window(self._window.pieces, self._window.window_tokens, choice.surplus)
        return arenas.window_of_file(files[FileName.window(choice.window.name)], choice.surplus)
