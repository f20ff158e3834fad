import inspect
import pickle
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from agentmem import GatewayUnreachable, errors
from agentmem.errors import AgentmemError, from_rpc

EXAMPLES: list[AgentmemError] = [
    errors.InvalidArgument("messages[2].role", "must not be empty"),
    errors.Unauthenticated("who are you?"),
    errors.PermissionDenied("not yours"),
    errors.NotFound("agent", "a/b é"),
    errors.AlreadyExists("there is one"),
    errors.Aborted("older"),
    errors.FailedPrecondition("the fingerprint differs"),
    errors.ContextExceeded("the prompt is too long", 9000, 8192),
    errors.ResourceExhausted("the disk is full", 2.5),
    errors.Unavailable("draining", 0.25),
    errors.DeadlineExceeded("too late"),
    errors.DataLoss("damaged"),
    errors.Unimplemented("not here"),
    errors.Cancelled("you left"),
    errors.Internal("incident 123"),
]
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, AgentmemError)]


def over_the_wire(error: AgentmemError) -> grpc.aio.AioRpcError:
    status = cast(Any, rpc_status.to_status(error.to_status()))
    metadata = grpc.aio.Metadata(*status.trailing_metadata)
    return grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), metadata, details=status.details)


def test_every_error_is_in_the_examples_and_in_the_table() -> None:
    leaves = {kind for kind in KINDS if not kind.__name__.startswith("_") and kind is not AgentmemError}
    assert {type(example) for example in EXAMPLES} == leaves
    table = errors.__doc__ or ""
    for example in EXAMPLES:
        (line,) = (line for line in table.splitlines() if f"── {type(example).__name__} " in line)
        assert line.split()[-2:] == [example.code.name, str(example.http_status)]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_both_directions(error: AgentmemError) -> None:
    back = from_rpc(over_the_wire(error))
    assert type(back) is type(error)
    assert back.message == error.message
    assert list(back.details()) == list(error.details())


@pytest.mark.parametrize("error", [*EXAMPLES, GatewayUnreachable("127.0.0.1:1")], ids=lambda e: type(e).__name__)
def test_from_one_process_to_another(error: AgentmemError) -> None:
    """As a pool of processes hands on what a call in one of them has raised."""
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), vars(back)) == (str(error), vars(error))


@pytest.mark.parametrize("count", ["9" * 5000, "-1", "²", ""])
def test_counts_that_are_none_are_left_out(count: str) -> None:
    error = errors.ContextExceeded("too long", cast(Any, count), 8192)
    assert type(from_rpc(over_the_wire(error))) is errors.FailedPrecondition


def test_several_violations_survive() -> None:
    bad = errors.InvalidArgument("a", "x", [errors.Violation("b", "y"), errors.Violation("b", "z é")])
    assert bad.message == "a: x (and 2 more)"
    assert bad.violations == (("a", "x"), ("b", "y"), ("b", "z é"))
    back = from_rpc(over_the_wire(bad))
    assert isinstance(back, errors.InvalidArgument)
    assert (back.field, back.problem, back.message) == ("a", "x", bad.message)
    assert back.violations == bad.violations
    assert list(back.details()) == list(bad.details())


def test_details_are_those_of_the_contract() -> None:
    (violation,) = errors.InvalidArgument("f", "p").details()
    assert violation == error_details_pb2.BadRequest(
        field_violations=[error_details_pb2.BadRequest.FieldViolation(field="f", description="p")]
    )
    (resource,) = errors.NotFound("model", "m").details()
    assert resource == error_details_pb2.ResourceInfo(resource_type="model", resource_name="m")
    (retry,) = errors.Unavailable("x", 1.5).details()
    assert isinstance(retry, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.5


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_no_status_of_ours_is_without_a_detail(error: AgentmemError) -> None:
    """So that a client which sees nothing but details (grpc-go) knows them from those of a connection."""
    (detail,) = error.to_status().details
    if detail.Unpack(said := error_details_pb2.ErrorInfo()):
        assert (said.reason, said.domain) == (getattr(error, "reason", error.code.name), "agentmem")


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
@pytest.mark.parametrize("details", ["said so", None])
def test_a_status_without_details(code: grpc.StatusCode, details: str | None) -> None:
    """From a proxy, or from grpc itself."""
    bare = from_rpc(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details))
    known = {example.code for example in EXAMPLES}
    assert bare.code is (code if code in known else grpc.StatusCode.INTERNAL)
    assert (details or code.name.lower()) in bare.message


def test_details_that_do_not_belong_to_the_status_are_ignored() -> None:
    """grpc_status refuses a status that contradicts its details."""
    metadata = grpc.aio.Metadata(("grpc-status-details-bin", errors.Aborted("x").to_status().SerializeToString()))
    failure = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), metadata, details="y")
    assert isinstance(from_rpc(failure), errors.Unavailable)


def _ill_formed_detail() -> bytes:
    status = errors.NotFound("agent", "a").to_status()
    status.details[0].value = b"\xff"
    return status.SerializeToString()


@pytest.mark.parametrize("details", [b"\xff\xff\xff", _ill_formed_detail()])
def test_details_that_do_not_parse(details: bytes) -> None:
    metadata = grpc.aio.Metadata(("grpc-status-details-bin", details))
    failure = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), metadata, details="y")
    assert isinstance(from_rpc(failure), errors.NotFound)


SILENT = (
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_a_peer_that_says_nothing_is_out_of_reach(code: grpc.StatusCode) -> None:
    bare = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="ipv4:127.0.0.1:1")
    failure = errors.from_peer(bare, "the store does not answer")
    assert (failure.message == "the store does not answer") == (code in SILENT)
    assert isinstance(failure, errors.Unavailable) == (code in SILENT)
