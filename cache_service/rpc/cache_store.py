import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import grpc

from agentmem import paging
from agentmem.errors import NotFound, Unavailable
from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.hints import Hint, TurnHints
from agentmem.process.shielding import run_shielded
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc, types_pb2
from agentmem.validation import AgentKey, check_text
from cache_service.connection import Connection
from cache_service.files import holding, references
from cache_service.files.directory import DataDirectory, Probe
from cache_service.files.references import FileRow
from cache_service.ledger import agents, branches, object_references, turns, workflow_records
from cache_service.ledger.clock import LedgerClock
from cache_service.ledger.ledgers import Ledgers
from cache_service.ledger.turns import Commit, Turn
from cache_service.ledger_home import LedgerHome, Peers
from cache_service.rpc import conversions
from cache_service.tiers import objects
from cache_service.tiers.blocks import BlockStore
from cache_service.tiers.eviction import LastUse
from cache_service.tiers.objects import Object
from cache_service.tiers.quotas import LedgerWriter
from cache_service.tiers.retrieval import Retriever
from cache_service.tiers.streams import BlockStreams
from cache_service.tiers.warm_rows import WarmRows

_MOST_UNATTENDED: Final = 1000

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(eq=False)
class CacheStoreServicer(cache_store_pb2_grpc.CacheStoreServiceServicer):
    """Each RPC is one transaction of the ledger's functions, or one call of BlockStore or BlockStreams. Event loop."""

    _database: Ledgers
    _rows: WarmRows
    _clock: LedgerClock
    _blocks: BlockStore
    _hints: TurnHints
    _directory: DataDirectory
    _streams: BlockStreams
    _last_use: LastUse
    _probe: Probe
    _ledgers: LedgerWriter
    _retriever: Retriever | None
    """None where there is no remote tier."""
    _peers: Peers | None
    """None on a single machine."""
    _home: LedgerHome

    async def OpenCache(self, request: pb.OpenCacheRequest, context: Context) -> pb.OpenCacheResponse:
        key = AgentKey.from_proto(request.key, anonymous=True)
        known = conversions.version("known", request.known)
        names = conversions.chain_hashes("block_hashes", FileKind.BLOCK, request.block_hashes)
        names += conversions.chain_hashes("window_hashes", FileKind.WINDOW, request.window_hashes)

        opened = await self._database.read(turns.open_agent, key, known, request.request_id)
        if opened.turn is not None:
            await self._database.settle()  # it is answered as committed, which its committer may not know
        files, fingerprint = await self._rows.read(_found, key.namespace, names, opened.version.uid)
        on_nodes: list[FileRow] = []
        copies: list[Object] = []
        missing = set(names) - {file.name for file in files}
        speaker = key._replace(agent_id=key.agent_id or request.turn_agent_id)
        if missing and self._peers is not None and speaker.agent_id and not request.peek:  # a peer asks no others
            on_nodes = await self._peers.look(speaker, missing)
            missing -= {file.name for file in on_nodes}
        if self._retriever is not None:
            copies, of_copies = await self._database.read(_copies, key.namespace, missing, opened.version.uid)
            fingerprint = fingerprint or of_copies
        remote = [conversions.file_message(file, None, on_node=True) for file in on_nodes]
        remote += [conversions.file_message(each.file, None) for each in copies]
        if not request.peek:
            self._last_use.note(opened.version.uid, [file.name for file in files], self._clock.time())
        return pb.OpenCacheResponse(
            version=opened.version.to_proto(),
            ledger=None if opened.ledger is None else opened.ledger.to_proto(),
            files=[*self._messages(files), *remote],
            turn=None if opened.turn is None else conversions.committed_message(opened.turn),
            evicted=not remote and await self._was_evicted(opened.version.uid, speaker if missing else None),
            kv_fingerprint=fingerprint,
            context_policy=types_pb2.ContextPolicy.ValueType(opened.context_policy),
        )

    async def _was_evicted(self, uid: str, speaker: AgentKey | None) -> bool:
        """`speaker` asks for files of no agent in particular."""
        if not uid and speaker is not None and speaker.agent_id:
            state = await self._database.read(agents.find, speaker)
            uid = "" if state is None else state.version.uid
        return bool(uid) and await self._rows.read(holding.was_evicted, uid)

    async def FetchBlocks(self, request: pb.FetchBlocksRequest, context: Context) -> pb.FetchBlocksResponse:
        namespace = check_text("namespace", request.namespace)
        names = list(dict.fromkeys(conversions.file_names("names", request.names)))
        if self._peers is not None:
            await self._peers.fetch(namespace, names)
        if self._retriever is None:
            files = await self._rows.read(references.find, namespace=namespace, names=names)
        else:
            files = await self._retriever.fetch(namespace, names)
        return pb.FetchBlocksResponse(files=self._messages(files))

    async def FindBlock(self, request: pb.FindBlockRequest, context: Context) -> pb.FindBlockResponse:
        found = await self._rows.read(references.closest, *conversions.block_place(request))
        if found is None:
            return pb.FindBlockResponse()
        if not request.peek:
            self._last_use.note("", [found.name], self._clock.time())
        return pb.FindBlockResponse(file=self._messages([found])[0])

    async def FindSnapshot(self, request: pb.FindSnapshotRequest, context: Context) -> pb.FindSnapshotResponse:
        found = await self._database.read(
            branches.find_snapshot,
            AgentKey.from_proto(request.key),
            conversions.version("base", request.base),
            request.text,
            request.common_tokens,
            check_text("tokenizer_hash", request.tokenizer_hash),
        )
        if found is None:
            return pb.FindSnapshotResponse()
        version, ledger = found
        return pb.FindSnapshotResponse(version=version.to_proto(), ledger=ledger.to_proto())

    async def CommitTurn(self, request: pb.CommitTurnRequest, context: Context) -> pb.CommitTurnResponse:
        turn = conversions.turn(request)
        ended = self._hints.of(turn.key) if request.ends_turn_hint else None
        # Files have to go even if the caller has gone.
        done = await run_shielded(self._commit(turn, ended))
        return pb.CommitTurnResponse(
            version=done.version.to_proto(),
            replayed=None if done.replayed is None else conversions.committed_message(done.replayed),
        )

    async def CreateAgent(self, request: pb.CreateAgentRequest, context: Context) -> pb.CreateAgentResponse:
        key, content = AgentKey.from_proto(request.key), conversions.ledger("ledger", request.ledger)
        policy = conversions.context_policy(request.context_policy) or agents.DEFAULT_CONTEXT_POLICY
        version = await self._ledgers.write(key.namespace, turns.create_agent, key, content, self._clock.now(), policy)
        return pb.CreateAgentResponse(version=version.to_proto())

    async def StageBlocks(self, request: pb.StageBlocksRequest, context: Context) -> pb.StageBlocksResponse:
        names = conversions.file_names("names", request.names)
        staged = await asyncio.wrap_future(self._blocks.stage(check_text("namespace", request.namespace), names))
        return pb.StageBlocksResponse(
            files=[
                pb.StagedFile(kind=name.kind.to_proto(), chain_hash=name.chain_hash, path=str(path))
                for name, path in staged
            ]
        )

    async def PublishBlocks(self, request: pb.PublishBlocksRequest, context: Context) -> pb.PublishBlocksResponse:
        published = await asyncio.wrap_future(self._blocks.publish(conversions.publication(request)))
        return pb.PublishBlocksResponse(published=published.published, dropped=published.dropped)

    async def GetStore(self, request: pb.GetStoreRequest, context: Context) -> pb.GetStoreResponse:
        return pb.GetStoreResponse(
            instance=self._probe.instance,
            probe_path=str(self._probe.path),
            staging_directory=str(self._directory.staging),
        )

    async def ReadBlock(self, request: pb.ReadBlockRequest, context: Context) -> AsyncIterator[pb.ReadBlockResponse]:
        namespace = check_text("namespace", request.namespace)
        name = conversions.file_name("name", request.name)
        async with aclosing(self._streams.read(namespace, name)) as chunks:
            async for chunk in chunks:
                yield pb.ReadBlockResponse(chunk=chunk)

    async def QuarantineBlock(self, request: pb.QuarantineBlockRequest, context: Context) -> pb.QuarantineBlockResponse:
        namespace = check_text("namespace", request.namespace)
        reason = check_text("reason", request.reason)
        digest = conversions.digest("digest", request.digest) if request.digest else None
        name = conversions.file_name("name", request.name)
        await asyncio.wrap_future(self._blocks.quarantine(namespace, name, digest, reason))
        return pb.QuarantineBlockResponse()

    async def PutWorkflowRecord(
        self, request: pb.PutWorkflowRecordRequest, context: Context
    ) -> pb.PutWorkflowRecordResponse:
        new = conversions.workflow_put(request)
        version = await self._ledgers.write(new.namespace, workflow_records.put, new=new)
        return pb.PutWorkflowRecordResponse(version=version)

    async def GetWorkflowRecord(
        self, request: pb.GetWorkflowRecordRequest, context: Context
    ) -> pb.GetWorkflowRecordResponse:
        namespace, workflow_id = conversions.workflow_name(request)
        after, payload = request.after_event, not request.without_payload
        found = await self._database.read(workflow_records.read, namespace, workflow_id, after, payload=payload)
        if found is None:
            raise NotFound("workflow", workflow_id)
        there = self._there([found.record])
        record = conversions.workflow_message(namespace, found.record, there, found.payload)
        return pb.GetWorkflowRecordResponse(record=record, events=found.events)

    async def ListWorkflowRecords(
        self, request: pb.ListWorkflowRecordsRequest, context: Context
    ) -> pb.ListWorkflowRecordsResponse:
        namespace = check_text("namespace", request.namespace)
        size = paging.asked_size(request)
        last = paging.number(request.page_token)
        before = workflow_records.NEWEST if last is None else last
        found = await self._database.read(workflow_records.page, namespace, before, size + 1)
        page, following = paging.cut(found, size, lambda record: (str(record.id),))
        there = self._there(page)
        return pb.ListWorkflowRecordsResponse(
            records=[conversions.workflow_message(namespace, record, there) for record in page],
            next_page_token=following,
        )

    async def AttendWorkflowRecords(
        self, request: pb.AttendWorkflowRecordsRequest, context: Context
    ) -> pb.AttendWorkflowRecordsResponse:
        holder = check_text("holder", request.holder)
        if self._home.own_holders.note(holder, leaving=request.leaving):
            self._home.wake_others()
        if request.leaving:
            return pb.AttendWorkflowRecordsResponse()
        if problem := await self._home.problem():
            raise Unavailable(problem)
        held = await self._database.read(workflow_records.held, holder)
        if self._home.own_holders.is_new:
            return pb.AttendWorkflowRecordsResponse(held=map(_named, held))
        there = self._home.holders() | {holder}
        unattended = await self._database.read(workflow_records.unattended, there, _MOST_UNATTENDED)
        return pb.AttendWorkflowRecordsResponse(held=map(_named, held), unattended=map(_named, unattended))

    async def DeleteWorkflowRecord(
        self, request: pb.DeleteWorkflowRecordRequest, context: Context
    ) -> pb.DeleteWorkflowRecordResponse:
        namespace, workflow_id = conversions.workflow_name(request)
        await self._blocks.erase(workflow_records.delete, namespace, workflow_id, request.version)
        return pb.DeleteWorkflowRecordResponse()

    def _there(self, records: Iterable[workflow_records.Record]) -> Set[str]:
        return self._home.holders() | self._home.own_holders.presumed(record.holder for record in records)

    async def _commit(self, turn: Turn, ended: Hint | None) -> Commit:
        done = await self._ledgers.commit(turn.key.namespace, turns.commit, turn, self._clock.now())
        if not done.repeated:  # this call may have found a newer hint
            self._hints.forget(turn.key, ended)
        if done.dropped_tokens or self._blocks.is_behind:
            self._blocks.follow()
        return done

    def _messages(self, files: Iterable[FileRow]) -> list[pb.StoredFile]:
        return [conversions.file_message(file, self._directory.path(file.name)) for file in files]


def _found(
    connection: sqlite3.Connection, namespace: str, names: Sequence[FileName], uid: str
) -> tuple[list[FileRow], str]:
    return references.find(connection, namespace, dict.fromkeys(names)), holding.fingerprint(connection, uid)


def _named(name: tuple[str, str]) -> pb.WorkflowRecord:
    return pb.WorkflowRecord(namespace=name[0], workflow_id=name[1])


def _copies(connection: Connection, namespace: str, names: Set[FileName], uid: str) -> tuple[list[Object], str]:
    return objects.find(connection, namespace, names), object_references.fingerprint(connection, uid)
