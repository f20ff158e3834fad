"""The errors of the contract: one tree, one table, both directions.

    AgentmemError
    ├── InvalidArgument     INVALID_ARGUMENT     400
    ├── Unauthenticated     UNAUTHENTICATED      401
    ├── PermissionDenied    PERMISSION_DENIED    403
    ├── NotFound            NOT_FOUND            404
    ├── AlreadyExists       ALREADY_EXISTS       409
    ├── Aborted             ABORTED              409
    ├── FailedPrecondition  FAILED_PRECONDITION  400
    │   └── ContextExceeded FAILED_PRECONDITION  400
    ├── ResourceExhausted   RESOURCE_EXHAUSTED   429
    ├── Unavailable         UNAVAILABLE          503
    ├── DeadlineExceeded    DEADLINE_EXCEEDED    504
    ├── DataLoss            DATA_LOSS            422
    ├── Unimplemented       UNIMPLEMENTED        501
    ├── Cancelled           CANCELLED            499
    └── Internal            INTERNAL             500

`agentmem.process.rpc` turns them into rich gRPC status, `from_rpc` turns a peer's status back into them.
"""

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final, NamedTuple, cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc import StatusCode
from grpc_status import rpc_status

_DOMAIN: Final = "agentmem"


class AgentmemError(Exception):
    """Base of all errors that may leave a process. `message` says what to do and holds no prompt text."""

    code: ClassVar[StatusCode]
    http_status: ClassVar[int]

    def __init_subclass__(cls, code: StatusCode | None = None, http_status: int = 0) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code, cls.http_status = code, http_status

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, vars(self))  # parameters of `__init__` differ by class

    def details(self) -> Iterable[Message]:
        """Return google.rpc details, at least one: grpc-go takes a status without details for its own."""
        return (error_details_pb2.ErrorInfo(reason=self.code.name, domain=_DOMAIN),)

    def to_status(self) -> status_pb2.Status:
        packed = []
        for detail in self.details():
            box = any_pb2.Any()
            box.Pack(detail)
            packed.append(box)
        return status_pb2.Status(code=code_pb2.Code.Value(self.code.name), message=self.message, details=packed)


def _restored(kind: type[AgentmemError], args: tuple[Any, ...], state: Mapping[str, Any]) -> AgentmemError:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


class Violation(NamedTuple):
    """A wrong field, by its path in the request, such as `messages[2].role`."""

    field: str
    problem: str


class InvalidArgument(AgentmemError, code=StatusCode.INVALID_ARGUMENT, http_status=400):
    """A field is wrong. `field` is its path in the request; `violations` also has the `others`.

    They travel in a trailer, which may hold 8 KiB only.
    """

    def __init__(self, field: str, problem: str, others: Sequence[Violation] = ()) -> None:
        self.field = field
        self.problem = problem
        self.violations = (Violation(field, problem), *others)
        super().__init__(self.about(field))

    def about(self, name: str) -> str:
        """Return the message with the caller's name for the field."""
        others = len(self.violations) - 1
        return f"{name}: {self.problem}{f' (and {others} more)' if others else ''}"

    def details(self) -> Iterable[Message]:
        made = error_details_pb2.BadRequest()
        for violation in self.violations:
            made.field_violations.add(field=violation.field, description=violation.problem)
        return (made,)


class Unauthenticated(AgentmemError, code=StatusCode.UNAUTHENTICATED, http_status=401):
    """No credentials, or unknown ones."""


class PermissionDenied(AgentmemError, code=StatusCode.PERMISSION_DENIED, http_status=403):
    """It belongs to someone else."""


class NotFound(AgentmemError, code=StatusCode.NOT_FOUND, http_status=404):
    """There is no such thing. `kind` is "agent", "model", "snapshot", and so on."""

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        super().__init__(f"{kind} {name!r} does not exist{'; ' + hint if hint else ''}")
        self.kind = kind
        self.name = name

    def details(self) -> Iterable[Message]:
        return (error_details_pb2.ResourceInfo(resource_type=self.kind, resource_name=self.name),)


class AlreadyExists(AgentmemError, code=StatusCode.ALREADY_EXISTS, http_status=409):
    """There is one already."""


class Aborted(AgentmemError, code=StatusCode.ABORTED, http_status=409):
    """Another writer was first. Read the present state and try again."""


class FailedPrecondition(AgentmemError, code=StatusCode.FAILED_PRECONDITION, http_status=400):
    """The request cannot work here, however often it is tried."""


class ContextExceeded(FailedPrecondition):
    """The prompt has more tokens than the model's context: at least `tokens`, of `limit`.

    If an answer is wanted, `limit` leaves one token for it.
    """

    reason: ClassVar[str] = "CONTEXT_EXCEEDED"

    def __init__(self, message: str, tokens: int, limit: int) -> None:
        super().__init__(message)
        self.tokens = tokens
        self.limit = limit

    def details(self) -> Iterable[Message]:
        counts = {"tokens": str(self.tokens), "limit": str(self.limit)}
        return (error_details_pb2.ErrorInfo(reason=self.reason, domain=_DOMAIN, metadata=counts),)


class _Retryable(AgentmemError):
    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def details(self) -> Iterable[Message]:
        info = error_details_pb2.RetryInfo()
        info.retry_delay.FromTimedelta(timedelta(seconds=self.retry_after))
        return (info,)


class ResourceExhausted(_Retryable, code=StatusCode.RESOURCE_EXHAUSTED, http_status=429):
    """Something is full; try again after `retry_after` seconds."""


class Unavailable(_Retryable, code=StatusCode.UNAVAILABLE, http_status=503):
    """Not now; try again after `retry_after` seconds."""


class DeadlineExceeded(AgentmemError, code=StatusCode.DEADLINE_EXCEEDED, http_status=504):
    """The caller's time is over."""


class DataLoss(AgentmemError, code=StatusCode.DATA_LOSS, http_status=422):
    """A file that was sent, or a stored ledger, is damaged."""


class Unimplemented(AgentmemError, code=StatusCode.UNIMPLEMENTED, http_status=501):
    """This build does not serve the RPC."""


class Cancelled(AgentmemError, code=StatusCode.CANCELLED, http_status=499):
    """The caller, or an Abort, ended the request."""


class Internal(AgentmemError, code=StatusCode.INTERNAL, http_status=500):
    """A bug, logged under the incident id of the message; or a failing disk."""


_COUNT: Final = re.compile(r"[0-9]{1,18}")
_RICH_STATUS: Final = "grpc-status-details-bin"
_KINDS: Final = (
    error_details_pb2.BadRequest,
    error_details_pb2.ErrorInfo,
    error_details_pb2.ResourceInfo,
    error_details_pb2.RetryInfo,
)

_PLAIN: dict[StatusCode, type[AgentmemError]] = {
    error.code: error
    for error in (
        Unauthenticated, PermissionDenied, AlreadyExists, Aborted, FailedPrecondition, DeadlineExceeded, DataLoss,
        Unimplemented, Cancelled,
    )
}  # fmt: skip


def from_rpc(error: grpc.aio.AioRpcError) -> AgentmemError:
    code, message = error.code(), error.details() or error.code().name.lower()
    details = _details(error)
    match code:
        case StatusCode.INVALID_ARGUMENT:
            bad = details.get(error_details_pb2.BadRequest)
            violations = [Violation(each.field, each.description) for each in bad.field_violations] if bad else []
            first, *others = violations or [Violation("request", message)]
            return InvalidArgument(*first, others=others)
        case StatusCode.NOT_FOUND:
            info = details.get(error_details_pb2.ResourceInfo)
            found = NotFound(info.resource_type, info.resource_name) if info else NotFound("resource", "")
            found.message = message
            return found
        case StatusCode.FAILED_PRECONDITION if info := details.get(error_details_pb2.ErrorInfo):
            counts = [info.metadata[name] for name in ("tokens", "limit") if _COUNT.fullmatch(info.metadata[name])]
            if info.domain == _DOMAIN and info.reason == ContextExceeded.reason and len(counts) == 2:
                return ContextExceeded(message, *map(int, counts))
        case StatusCode.RESOURCE_EXHAUSTED | StatusCode.UNAVAILABLE:
            retryable = ResourceExhausted if code is StatusCode.RESOURCE_EXHAUSTED else Unavailable
            retry = details.get(error_details_pb2.RetryInfo)
            return retryable(message, retry.retry_delay.ToTimedelta().total_seconds()) if retry else retryable(message)
    return _PLAIN.get(code, Internal)(message)


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_unreachable(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the transport failed: only our processes' own errors have details.

    A removed stream ends with UNKNOWN, one that an ending peer resets with CANCELLED.
    """
    failed = (StatusCode.UNAVAILABLE, StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.CANCELLED)
    return error.code() in failed and not _is_rich(error)


def is_silence(error: grpc.aio.AioRpcError) -> bool:
    """Return whether no process of ours answered, so that the effect is unknown."""
    return is_unreachable(error) or (error.code() is StatusCode.DEADLINE_EXCEEDED and not _is_rich(error))


def from_peer(error: grpc.aio.AioRpcError, unreachable: str) -> AgentmemError:
    """Return a peer's error, or Unavailable(`unreachable`) if it `is_silence`."""
    return Unavailable(unreachable) if is_silence(error) else from_rpc(error)


def _is_rich(error: grpc.aio.AioRpcError) -> bool:
    return any(key == _RICH_STATUS for key, _ in cast(Any, error.trailing_metadata()) or ())


def _details(error: grpc.aio.AioRpcError) -> dict[type[Message], Any]:
    """Return the first detail of each kind."""
    found: dict[type[Message], Any] = {}
    try:
        status = rpc_status.from_call(cast(grpc.Call, error))
        for box in status.details if status is not None else ():
            for kind in _KINDS:
                if box.Unpack(detail := kind()):
                    found.setdefault(kind, detail)
    except (ValueError, DecodeError):
        return {}  # malformed details: code and text are all there is
    return found
