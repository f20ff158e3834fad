"""The end of a turn: committed before its caller is told, or replayed."""

from itertools import accumulate
from typing import Any

from agentmem.conversations import message_hashes
from agentmem.errors import Aborted, InvalidArgument
from agentmem.kv.hints import TurnHints
from agentmem.v1 import cache_store_pb2, inference_pb2
from inference_service.domain import MessagesInput
from inference_service.models.loaded import LoadedModel
from inference_service.storage.client import StoreClient
from inference_service.text.prompt import message_places
from inference_service.threads import WorkerThreads
from inference_service.turns.stream import delta
from inference_service.turns.turn import Turn


async def commit(
    turn: Turn,
    model: LoadedModel,
    finished: inference_pb2.Finished,
    store: StoreClient,
    threads: WorkerThreads,
    hints: TurnHints,
) -> None:
    """Append the turn to the ledger, under the agent's lock. It cannot be cancelled any more. Event loop.

    Sets `version` and `message_hashes`. Raises an earlier cancellation, and Aborted if another writer was faster.
    """
    turn.stream.check()
    turn.stream.committing = True
    request = await threads.plan(lambda: _request(turn, model, finished), len(turn.plan.sequence))
    request.ends_turn_hint = turn.request.generates and hints.of(turn.request.key) is turn.hint
    turn.version, replayed = await store.commit(request)
    _end_hint(turn, hints)
    if replayed is not None:
        raise Aborted("another writer committed this request_id meanwhile; send it again to get its answer")
    turn.message_hashes = [bytes(each) for each in request.message_hashes]


def replay(turn: Turn, model: LoadedModel, committed: cache_store_pb2.CommittedTurn, hints: TurnHints) -> None:
    """Answer a turn that was committed before. Raises InvalidArgument if its request_id was another request's."""
    if committed.request_digest != turn.request.digest:
        raise InvalidArgument("request_id", "was used for a turn with other arguments; choose another")
    record, stream = committed.record, turn.stream
    stream.started(record.started, model.tokenizer)
    if record.delta.ByteSize():
        stream.send(inference_pb2.GenerateResponse(delta=record.delta))
    finished = record.finished
    finished.version.CopyFrom(committed.version)
    finished.durable = finished.replayed = True
    stream.send(inference_pb2.GenerateResponse(finished=finished))
    _end_hint(turn, hints)


def _end_hint(turn: Turn, hints: TurnHints) -> None:
    """Drop the hint that announced this turn, unless a new one was set. Prefill is no turn."""
    if turn.request.generates:
        hints.forget(turn.request.key, turn.hint)


def _request(turn: Turn, model: LoadedModel, finished: inference_pb2.Finished) -> cache_store_pb2.CommitTurnRequest:
    request, plan, generated, keep = turn.request, turn.plan, turn.generated, turn.keep_tokens
    token_ids = [*plan.sequence[keep:].tolist(), *generated.token_ids]
    pieces = model.tokenizer.pieces(token_ids)
    own = turn.carried_turns[-1].end_token - keep if turn.carried_turns else 0
    before = turn.ledger.text[: turn.ledger.text_end(keep)] + b"".join(pieces[:own])
    prompt = b"".join(pieces[own : len(pieces) - len(generated.token_ids)])
    said = delta(turn.stream.tokens, model.tokenizer, generated.rest)
    return cache_store_pb2.CommitTurnRequest(
        key=request.key.to_proto(),
        base=turn.base.to_proto(),
        keep_tokens=keep,
        token_ids=token_ids,
        text=b"".join(pieces),
        offsets=accumulate(map(len, pieces)),
        tokenizer_hash=model.tokenizer.hash,
        generated_tokens=len(generated.token_ids),
        request_id=request.request_id,
        request_digest=request.digest,
        record=cache_store_pb2.TurnRecord(
            started=turn.started,
            delta=said,
            finished=finished,
            messages=message_places(request.input, before, prompt, appended=turn.appended),
        ),
        message_hashes=[] if turn.appended else _conversation(turn, said),
        label=request.label,
        expiry=request.expiry.to_proto(),
        template_time=turn.ledger.template_time,
        snapshot_version=turn.snapshot_version,
        carried_turns=[each.to_proto() for each in turn.carried_turns],
        opening_bytes=turn.opening_bytes,
        context_policy=request.context_policy,
    )


def _conversation(turn: Turn, said: inference_pb2.Delta) -> list[bytes]:
    """Return the hash chain of a whole chat with its answer, as the client will send it back."""
    chat = turn.request.input
    if not isinstance(chat, MessagesInput):
        return []
    answer = (_message(said),) if turn.request.generates else ()
    return message_hashes((*chat.messages, *answer), chat.tools, chat.template_arguments)


def _message(said: inference_pb2.Delta) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
        for call in said.tool_calls
    ]
    return {"role": "assistant", "content": said.text, "tool_calls": calls or None}
