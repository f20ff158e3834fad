"""What `agentmem up` checks before it starts anything, so that a mistake is told at once and in one line."""

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

from agentmem import datadir, otlp
from agentmem.addresses import Address, parse_address
from agentmem.model_registry import register
from agentmem.settings import SettingsError, load
from gateway.cli.up_settings import UpSettings, service_arguments
from gateway.credential_files import check_files
from gateway.settings import GatewaySettings

_LAST_PORT = 65535
_NO_SUCH_FAMILY = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class WrongSetting(Exception):
    """A setting cannot work on this machine now; the message names the flag."""


def check(settings: UpSettings) -> None:
    """Raises WrongSetting for what the services would refuse unseen. Writes nothing, whoever runs."""
    _check_data(settings.data_directory)
    try:
        otlp.check(settings.otlp)
        register(settings.model, settings.adapter, settings.models)
        check_files(load(GatewaySettings, service_arguments(settings).gateway))
    except (ValueError, SettingsError) as error:
        raise WrongSetting(str(error)) from error


def _check_data(directory: Path) -> None:
    try:
        datadir.refuse_foreign(directory)
    except datadir.ForeignDirectory as error:
        raise WrongSetting(f"--data: {error}") from error
    except OSError as error:
        raise WrongSetting(f"--data {directory} cannot be used: {error.strerror}") from error


def check_ports(settings: UpSettings) -> None:
    """Raises WrongSetting unless every port but 0 can be bound now, and none is wanted twice."""
    taken: dict[Address, str] = {}
    for flag, address in wanted(settings):
        if address.port == 0:
            continue
        if address in taken:
            raise WrongSetting(f"{flag}: port {address.port} is that of {taken[address]}, too; choose another")
        taken[address] = flag
        if problem := unbindable(address):
            raise WrongSetting(f"{flag}: cannot listen on {address}: {problem}; choose another port")


def wanted(settings: UpSettings) -> Iterator[tuple[str, Address]]:
    """The addresses that the services listen on, each with the flag that says so. Raises WrongSetting."""
    yield f"--http {settings.http}", parse_address(settings.http)
    yield f"--grpc {settings.grpc}", parse_address(settings.grpc)
    if not settings.metrics:
        return
    first = parse_address(settings.metrics)
    flag = f"--metrics {settings.metrics} (takes three ports in a row: gateway, worker, store)"
    if first.port and first.offset(2).port > _LAST_PORT:
        raise WrongSetting(f"{flag}: the port must be at most {_LAST_PORT - 2}")
    for by in range(3):
        yield flag, first.offset(by)


def unbindable(address: Address) -> str:
    """Why a listener cannot have `address`; empty if it can. Of a name's families one is enough."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return error.strerror or str(error)
    problem, bound = "", False
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
                bound = True
        except OSError as error:
            problem = error.strerror or str(error)
            if error.errno not in _NO_SUCH_FAMILY:
                return problem
    return "" if bound else problem
