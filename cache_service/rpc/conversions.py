"""Messages to frozen dataclasses, and back. Mistakes are InvalidArgument, before anything is touched."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from agentmem.conversations import HASH_BYTES
from agentmem.errors import InvalidArgument
from agentmem.kv.blockfile import BLOCK_TOKENS, NO_PARENT, FileKind, FileName
from agentmem.kv.ledger import Ledger, TurnPlace, Version
from agentmem.v1 import cache_store_pb2, types_pb2
from agentmem.validation import (
    MAX_RECORD_BYTES,
    MAX_REQUEST_ID_BYTES,
    MAX_SUMMARY_BYTES,
    AgentKey,
    IdleTimes,
    check_revision,
    check_text,
)
from cache_service.files.publication import Publication, Staged
from cache_service.files.references import FileRow
from cache_service.ledger.agents import DEFAULT_CONTEXT_POLICY, Conversation
from cache_service.ledger.turns import Committed, Turn
from cache_service.ledger.workflow_records import Put, Record

CHAIN_HASH_BYTES = 32
DIGEST_BYTES = 16
COMMIT_ID_BYTES = 16
_MAX_VERSION = 2**63 - 1
_MAX_DIGEST_BYTES = 64
_MAX_TIME_BYTES = 64


def version(field: str, message: types_pb2.AgentVersion) -> Version:
    number = _version_number(f"{field}.version", message.version)
    return Version(message.uid, number, check_revision(f"{field}.revision", message.revision))


def request_id(value: str) -> str:
    return check_text("request_id", value, max_bytes=MAX_REQUEST_ID_BYTES, allow_empty=True)


def turn(request: cache_store_pb2.CommitTurnRequest) -> Turn:
    key = AgentKey.from_proto(request.key)
    name = request_id(request.request_id)
    if len(request.request_digest) > _MAX_DIGEST_BYTES:
        raise InvalidArgument("request_digest", f"must be at most {_MAX_DIGEST_BYTES} bytes")
    turns = [
        (f"carried_turns[{index}]", each.end_token - request.keep_tokens, each.generated_tokens)
        for index, each in enumerate(request.carried_turns)
    ]
    turns.append(("generated_tokens", len(request.token_ids), request.generated_tokens))
    hashes = message_hashes(request.message_hashes)
    label = check_text("label", request.label, allow_empty=True)
    return Turn(
        key=key,
        base=version("base", request.base),
        keep_tokens=request.keep_tokens,
        content=_ledger("", request, turns),
        context_policy=context_policy(request.context_policy) or DEFAULT_CONTEXT_POLICY,
        request_id=name,
        request_digest=request.request_digest,
        record=request.record.SerializeToString(),
        conversation=Conversation(label, len(hashes), hashes[-1] if hashes else b""),
        idle_times=IdleTimes.from_proto(request.expiry, "expiry."),
        snapshot_version=_version_number("snapshot_version", request.snapshot_version),
        commit_id=_sized("commit_id", request.commit_id, COMMIT_ID_BYTES) if request.commit_id else b"",
    )


def context_policy(value: int, *, needed: bool = False) -> int:
    """Unspecified only where it is not `needed`."""
    if value not in types_pb2.ContextPolicy.values() or (needed and value == types_pb2.CONTEXT_POLICY_UNSPECIFIED):
        raise InvalidArgument("context_policy", "must be CONTEXT_POLICY_TRIM, _REFUSE or _SUMMARIZE")
    return value


def committed_message(committed: Committed) -> cache_store_pb2.CommittedTurn:
    record = cache_store_pb2.TurnRecord.FromString(committed.record)
    state = committed.version.to_proto()
    record.finished.version.CopyFrom(state)
    return cache_store_pb2.CommittedTurn(request_digest=committed.request_digest, record=record, version=state)


def message_hashes(hashes: Sequence[bytes]) -> Sequence[bytes]:
    return [_sized(f"message_hashes[{index}]", value, HASH_BYTES) for index, value in enumerate(hashes)]


def ledger(field: str, message: cache_store_pb2.Ledger) -> Ledger:
    """Return a ledger, consistent in itself. Its turns have the versions from 1 on."""
    turns = [
        (f"{field}.turns[{index}]", turn.end_token, turn.generated_tokens) for index, turn in enumerate(message.turns)
    ]
    return _ledger(f"{field}.", message, turns)


def _ledger(
    field: str,
    message: cache_store_pb2.CommitTurnRequest | cache_store_pb2.Ledger,
    turns: Iterable[tuple[str, int, int]],
) -> Ledger:
    """`turns` are fields, ends in the ledger, and how much was generated."""
    tokens = len(message.token_ids)
    if tokens:
        check_text(f"{field}tokenizer_hash", message.tokenizer_hash)
    offsets = np.array(message.offsets, dtype=np.uint32)
    if len(offsets) != tokens:
        raise InvalidArgument(f"{field}offsets", f"must be as many as the tokens: {tokens}, not {len(offsets)}")
    if (offsets[1:] < offsets[:-1]).any():
        raise InvalidArgument(f"{field}offsets", "must not decrease")
    if (int(offsets[-1]) if tokens else 0) != len(message.text):
        raise InvalidArgument(f"{field}offsets", f"the last one must be the text's length: {len(message.text)} bytes")
    places: list[TurnPlace] = []
    start = 0
    for number, (turn, end, generated) in enumerate(turns, start=1):
        if not start <= end <= tokens or generated > end - start:
            raise InvalidArgument(turn, "a turn must end, with what it generated, between the ends of its neighbours")
        places.append(TurnPlace(end, generated, version=number))
        start = end
    return Ledger(
        *(np.array(message.token_ids, dtype=np.uint32), message.text, offsets, message.tokenizer_hash, tuple(places)),
        opening_bytes=message.opening_bytes,
        template_time=check_text(
            f"{field}template_time", message.template_time, max_bytes=_MAX_TIME_BYTES, allow_empty=True
        ),
    )


def chain_hashes(field: str, kind: FileKind, hashes: Sequence[bytes]) -> list[FileName]:
    return [FileName(kind, _sized(f"{field}[{index}]", value, CHAIN_HASH_BYTES)) for index, value in enumerate(hashes)]


def file_name(field: str, message: cache_store_pb2.FileName | cache_store_pb2.StoredFile) -> FileName:
    _sized(f"{field}.chain_hash", message.chain_hash, CHAIN_HASH_BYTES)
    try:
        return FileName.from_proto(message)
    except ValueError as error:
        raise InvalidArgument(f"{field}.kind", "must be FILE_KIND_BLOCK or FILE_KIND_WINDOW") from error


def block_place(request: cache_store_pb2.FindBlockRequest) -> tuple[str, str, bytes, bytes]:
    """Return namespace, fingerprint, parent and tokens."""
    namespace, fingerprint = (check_text(name, getattr(request, name)) for name in ("namespace", "fingerprint"))
    parent = _sized("parent", request.parent, CHAIN_HASH_BYTES) if request.parent else NO_PARENT
    if not 0 < len(request.token_ids) <= 4 * BLOCK_TOKENS or len(request.token_ids) % 4:
        raise InvalidArgument("token_ids", f"must be 1 to {BLOCK_TOKENS} tokens of 4 bytes")
    return namespace, fingerprint, parent, request.token_ids


def file_names(field: str, messages: Iterable[cache_store_pb2.FileName]) -> list[FileName]:
    return [file_name(f"{field}[{index}]", message) for index, message in enumerate(messages)]


def file_message(row: FileRow, path: Path | None, *, on_node: bool = False) -> cache_store_pb2.StoredFile:
    """Without a path the file is on another node or in the object store."""
    return cache_store_pb2.StoredFile(
        chain_hash=row.name.chain_hash,
        kind=row.name.kind.to_proto(),
        path="" if path is None else str(path),
        digest=row.digest,
        size_bytes=row.size_bytes,
        first_token=row.first_token,
        token_count=row.token_count,
        tier=types_pb2.TIER_REMOTE if path is None else types_pb2.TIER_WARM,
        token_ids=row.token_ids,
        on_node=on_node,
    )


def path(field: str, value: str) -> Path:
    if "\0" in value:
        raise InvalidArgument(field, "must be a path")
    return Path(value)


def publication(request: cache_store_pb2.PublishBlocksRequest) -> Publication:
    """An empty agent_id publishes files that no state refers to."""
    return Publication(
        key=AgentKey.from_proto(request.key, anonymous=True),
        version=version("version", request.version),
        staged=[
            Staged(file_row(f"files[{index}]", file), path(f"files[{index}].path", file.path))
            for index, file in enumerate(request.files)
        ],
        references=frozenset(file_names("references", request.references)),
        fingerprint=check_text("fingerprint", request.fingerprint) if request.files else request.fingerprint,
    )


def file_row(field: str, file: cache_store_pb2.StoredFile) -> FileRow:
    digest(f"{field}.digest", file.digest)
    name = file_name(field, file)
    if file.token_ids and (name.kind is not FileKind.BLOCK or len(file.token_ids) != 4 * file.token_count):
        raise InvalidArgument(f"{field}.token_ids", "must be those of a block, 4 bytes each, or empty")
    return FileRow.from_proto(file)


def workflow_name(
    message: cache_store_pb2.WorkflowRecord
    | cache_store_pb2.GetWorkflowRecordRequest
    | cache_store_pb2.DeleteWorkflowRecordRequest,
    prefix: str = "",
) -> tuple[str, str]:
    """`prefix` is of the names of its fields."""
    namespace = check_text(f"{prefix}namespace", message.namespace)
    return namespace, check_text(f"{prefix}workflow_id", message.workflow_id)


def workflow_put(request: cache_store_pb2.PutWorkflowRecordRequest) -> Put:
    record = request.record
    namespace, workflow_id = workflow_name(record, "record.")
    payload = record.payload if record.HasField("payload") else None
    for field, size, limit in (
        ("record.payload", len(payload or b""), MAX_RECORD_BYTES),
        ("record.summary", len(record.summary), MAX_SUMMARY_BYTES),
        ("events", sum(map(len, request.events)), MAX_RECORD_BYTES),
    ):
        if size > limit:
            raise InvalidArgument(field, f"must be at most {limit} bytes, is {size}")
    if not all(request.events):
        raise InvalidArgument("events", "must not be empty")
    holder = check_text("record.holder", record.holder, allow_empty=True)
    return Put(namespace, workflow_id, record.version, record.summary, payload, request.events, holder)


def workflow_message(
    namespace: str, record: Record, there: Collection[str], payload: bytes | None = None
) -> cache_store_pb2.WorkflowRecord:
    """Return a record, with its holder if that is among `there`."""
    return cache_store_pb2.WorkflowRecord(
        namespace=namespace,
        workflow_id=record.workflow_id,
        version=record.version,
        summary=record.summary,
        payload=payload,
        holder=record.holder if record.holder in there else "",
        event_count=record.events,
    )


def _version_number(field: str, number: int) -> int:
    if number > _MAX_VERSION:
        raise InvalidArgument(field, "is too large")
    return number


def digest(field: str, value: bytes) -> bytes:
    return _sized(field, value, DIGEST_BYTES)


def _sized(field: str, value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise InvalidArgument(field, f"must be {size} bytes, is {len(value)}")
    return value
