"""What the commands share that are clients of a gateway: the channel, retries, and one clear line for an error."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import click
import grpc

from agentmem import errors
from agentmem.channels import connect
from gateway import upstream

DEFAULT_GATEWAY = "127.0.0.1:50051"
MAX_ATTEMPTS = 4
_LONGEST_WAIT = 10.0

_T = TypeVar("_T")
_Command = TypeVar("_Command", bound=Callable[..., Any])

gateway_option = click.option(
    "--gateway", metavar="HOST:PORT", default=DEFAULT_GATEWAY, show_default=True, help="The gateway's gRPC address."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, for machines.")
model_option = click.option("--model", default="", help="The model's name; without it the default model.")


def ask(gateway: str, question: Callable[[grpc.aio.Channel], Coroutine[Any, Any, _T]]) -> _T:
    """Run `question` on a channel to `gateway`. Raises ClickException with one line for whatever goes wrong."""

    async def asked() -> _T:
        async with connect(gateway) as channel:
            return await question(channel)

    try:
        return asyncio.run(asked())
    except grpc.aio.AioRpcError as error:
        if upstream.is_unreachable(error):
            message = f"no gateway answers at {gateway}; start one with `agentmem up`, or name another with --gateway"
            raise click.ClickException(message) from error
        raise click.ClickException(errors.from_rpc(error).message) from error
    except errors.AgentmemError as error:
        raise click.ClickException(error.message) from error
    except UnicodeError as error:
        raise click.ClickException("what was given is not well-formed UTF-8") from error


async def retrying(
    attempt: Callable[[], Awaitable[_T]],
    may_retry: Callable[[], bool] = lambda: True,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> _T:
    """The result of `attempt`, tried again where the server says UNAVAILABLE, after as long as it says.

    Gives up, with the last failure, after MAX_ATTEMPTS, where `may_retry` says no, or where no gateway answers at all.
    """
    for left in reversed(range(MAX_ATTEMPTS)):
        try:
            return await attempt()
        except grpc.aio.AioRpcError as error:
            failure = errors.from_rpc(error)
            again = isinstance(failure, errors.Unavailable) and not upstream.is_unreachable(error)
            if not (again and left and may_retry()):
                raise
            assert isinstance(failure, errors.Unavailable)
            await sleep(min(failure.retry_after, _LONGEST_WAIT))
    raise AssertionError("the last attempt returns or raises")


def write_json(data: object) -> None:
    """One JSON document on one line."""
    click.echo(json.dumps(data, ensure_ascii=False))
