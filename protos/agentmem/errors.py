"""The errors of the contract: one tree, one table, both directions.

    AgentmemError
    ├── InvalidArgument      a field is wrong; `field` names it                     INVALID_ARGUMENT     400
    ├── Unauthenticated      no credentials, or unknown ones                        UNAUTHENTICATED      401
    ├── PermissionDenied     not yours                                              PERMISSION_DENIED    403
    ├── NotFound             unknown agent, model, snapshot                         NOT_FOUND            404
    ├── AlreadyExists        there is one already                                   ALREADY_EXISTS       409
    ├── Aborted              another writer was first, or if_version differs        ABORTED              409
    ├── FailedPrecondition   the model can't, fingerprint differs, context full     FAILED_PRECONDITION  400
    ├── ResourceExhausted    pool, queue, disk or quota is full                     RESOURCE_EXHAUSTED   429
    ├── Unavailable          draining, peer down, model loading, engine dead        UNAVAILABLE          503
    ├── DeadlineExceeded     the caller's time is over                              DEADLINE_EXCEEDED    504
    ├── DataLoss             a file that was handed in, or a ledger, is damaged     DATA_LOSS            422
    ├── Unimplemented        this build does not serve the RPC                      UNIMPLEMENTED        501
    ├── Cancelled            the caller went away                                   CANCELLED            499
    └── Internal             a bug (an incident id leaves the process), or a disk   INTERNAL             500

Raise them where the fault is found; `agentmem.rpc` turns them into rich gRPC status, `from_rpc` turns a peer's
status back into them, and the HTTP doors read `http_status`.
"""

import errno
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final, NamedTuple, cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status


class AgentmemError(Exception):
    """Base of all errors that may leave a process. `message` says what to do next and holds no prompt text."""

    code: ClassVar[grpc.StatusCode]
    http_status: ClassVar[int]

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def details(self) -> Iterable[Message]:
        """google.rpc details that go with the status."""
        return ()

    def to_status(self) -> status_pb2.Status:
        """The error as google.rpc.Status."""
        packed = []
        for detail in self.details():
            box = any_pb2.Any()
            box.Pack(detail)
            packed.append(box)
        return status_pb2.Status(code=code_pb2.Code.Value(self.code.name), message=self.message, details=packed)


class Violation(NamedTuple):
    """A field that is wrong, by its path in the request, such as `messages[2].role`, and what is wrong with it."""

    field: str
    problem: str


class InvalidArgument(AgentmemError):
    """A field is wrong. `field` is its path in the request; `others` are wrong as well, and `violations` has them all.

    They travel in a trailer, for which gRPC has 8 KiB or more: who finds many tells the first.
    """

    code = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400

    def __init__(self, field: str, problem: str, others: Sequence[Violation] = ()) -> None:
        super().__init__(f"{field}: {problem}{f' (and {len(others)} more)' if others else ''}")
        self.field = field
        self.problem = problem
        self.violations = (Violation(field, problem), *others)

    def details(self) -> Iterable[Message]:
        made = error_details_pb2.BadRequest()
        for violation in self.violations:
            made.field_violations.add(field=violation.field, description=violation.problem)
        return (made,)


class Unauthenticated(AgentmemError):
    """No credentials, or unknown ones."""

    code = grpc.StatusCode.UNAUTHENTICATED
    http_status = 401


class PermissionDenied(AgentmemError):
    """It belongs to someone else."""

    code = grpc.StatusCode.PERMISSION_DENIED
    http_status = 403


class NotFound(AgentmemError):
    """There is no such thing. `kind` is "agent", "model", "snapshot"…, `name` is its name."""

    code = grpc.StatusCode.NOT_FOUND
    http_status = 404

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        super().__init__(f"{kind} {name!r} does not exist{'; ' + hint if hint else ''}")
        self.kind = kind
        self.name = name

    def details(self) -> Iterable[Message]:
        return (error_details_pb2.ResourceInfo(resource_type=self.kind, resource_name=self.name),)


class AlreadyExists(AgentmemError):
    """There is one already."""

    code = grpc.StatusCode.ALREADY_EXISTS
    http_status = 409


class Aborted(AgentmemError):
    """Another writer was first. Read the present state and try again."""

    code = grpc.StatusCode.ABORTED
    http_status = 409


class FailedPrecondition(AgentmemError):
    """The request is well-formed but cannot work here, however often it is tried."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    http_status = 400


class _Retryable(AgentmemError):
    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def details(self) -> Iterable[Message]:
        info = error_details_pb2.RetryInfo()
        info.retry_delay.FromTimedelta(timedelta(seconds=self.retry_after))
        return (info,)


class ResourceExhausted(_Retryable):
    """Something is full; try again after `retry_after` seconds."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 429


class Unavailable(_Retryable):
    """Not now; try again after `retry_after` seconds."""

    code = grpc.StatusCode.UNAVAILABLE
    http_status = 503


class DeadlineExceeded(AgentmemError):
    """The caller's time is over."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    http_status = 504


class DataLoss(AgentmemError):
    """A file that was handed in, or a ledger that was kept, is damaged."""

    code = grpc.StatusCode.DATA_LOSS
    http_status = 422


class Unimplemented(AgentmemError):
    """This build does not serve the RPC."""

    code = grpc.StatusCode.UNIMPLEMENTED
    http_status = 501


class Cancelled(AgentmemError):
    """The caller, or an Abort, ended the request."""

    code = grpc.StatusCode.CANCELLED
    http_status = 499


class Internal(AgentmemError):
    """A bug: the message is an incident id, and the cause is in the log. Or a disk that fails: the message says so."""

    code = grpc.StatusCode.INTERNAL
    http_status = 500


_RICH_STATUS: Final = "grpc-status-details-bin"

_PLAIN: dict[grpc.StatusCode, type[AgentmemError]] = {
    error.code: error
    for error in (
        Unauthenticated, PermissionDenied, AlreadyExists, Aborted, FailedPrecondition, DeadlineExceeded, DataLoss,
        Unimplemented, Cancelled,
    )
}  # fmt: skip


def from_rpc(error: grpc.aio.AioRpcError) -> AgentmemError:
    """A peer's status as our own error, with field, name or retry delay from its details."""
    code, message = error.code(), error.details() or error.code().name.lower()
    details = _details(error)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        violations = [
            Violation(violation.field, violation.description)
            for detail in details
            if isinstance(detail, error_details_pb2.BadRequest)
            for violation in detail.field_violations
        ]
        first, *others = violations or [Violation("request", message)]
        return InvalidArgument(*first, others=others)
    if code is grpc.StatusCode.NOT_FOUND:
        found = NotFound("resource", "")
        for info in (d for d in details if isinstance(d, error_details_pb2.ResourceInfo)):
            found = NotFound(info.resource_type, info.resource_name)
        found.message = message
        return found
    if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE):
        retryable = ResourceExhausted if code is grpc.StatusCode.RESOURCE_EXHAUSTED else Unavailable
        for retry in (d for d in details if isinstance(d, error_details_pb2.RetryInfo)):
            return retryable(message, retry.retry_delay.ToTimedelta().total_seconds())
        return retryable(message)
    return _PLAIN.get(code, Internal)(message)


def is_disk_full(error: OSError) -> bool:
    """Whether there is no room: on the disk, or in the user's quota of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_unreachable(error: grpc.aio.AioRpcError) -> bool:
    """Whether the transport failed, whose words name sockets; a peer of ours says what it says with details."""
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL) and not _is_rich(error)


def is_silence(error: grpc.aio.AioRpcError) -> bool:
    """Whether a process of ours gave no answer, so that its effect is unknown.

    The transport failed, our own deadline for it passed, or the call was cut off.
    """
    silent = error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED) and not _is_rich(error)
    return silent or is_unreachable(error)


def from_peer(error: grpc.aio.AioRpcError, unreachable: str) -> AgentmemError:
    """The failure of a call to a process of ours: what it says, or Unavailable(`unreachable`) where it `is_silence`."""
    return Unavailable(unreachable) if is_silence(error) else from_rpc(error)


def _is_rich(error: grpc.aio.AioRpcError) -> bool:
    return any(key == _RICH_STATUS for key, _ in cast(Any, error.trailing_metadata()) or ())


def _details(error: grpc.aio.AioRpcError) -> list[Message]:
    known = (error_details_pb2.BadRequest, error_details_pb2.ResourceInfo, error_details_pb2.RetryInfo)
    found: list[Message] = []
    try:
        status = rpc_status.from_call(cast(grpc.Call, error))
        for box in status.details if status is not None else ():
            for kind in known:
                if box.Is(kind.DESCRIPTOR):
                    detail = kind()
                    box.Unpack(detail)
                    found.append(detail)
    except (ValueError, DecodeError):
        return []  # The peer contradicts itself, or is not ours: the code and its text are all there is.
    return found
