"""Checks of `agentmem up` before it starts anything."""

import errno
import socket
from collections.abc import Iterator

from agentmem import layout
from agentmem.console import Mistake
from agentmem.process import otlp
from agentmem.process.macos import unfit_python
from agentmem.process.model_registry import register
from agentmem.process.settings import SettingsError
from agentmem.process.sockets import Address, parse_address
from gateway.cli.up.default_model import check_model
from gateway.cli.up.settings import UpSettings, gateway_settings
from gateway.cli.up.variables import check_variables
from gateway.settings import check_files

_LAST_PORT = 65535
_NO_SUCH_FAMILY = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def check(settings: UpSettings) -> None:
    """Raise Mistake for settings and files that services would refuse. Writes nothing."""
    if problem := unfit_python():
        raise Mistake(problem)
    try:
        layout.refuse_foreign(settings.data_directory)
    except layout.ForeignDirectory as error:
        raise Mistake(f"--data: {error}") from error
    except OSError as error:
        raise Mistake(f"--data {settings.data_directory} cannot be used: {error.strerror}") from error
    try:
        otlp.check(settings.otlp)
        register(settings.model, settings.adapter, settings.models)
        check_files(gateway_settings(settings))
        check_model(settings)
    except (ValueError, SettingsError) as error:
        raise Mistake(str(error)) from error
    for socket_of in (layout.store_socket, layout.worker_socket):
        path = socket_of(settings.run_directory).removeprefix("unix:")
        if problem := layout.socket_problem(path):
            raise Mistake(f"--run-dir: {path} {problem}")
    check_variables(settings)


def check_ports(settings: UpSettings) -> None:
    """Raise Mistake unless each port but 0 can be bound, once."""
    taken: dict[Address, str] = {}
    for flag, address in _wanted(settings):
        if address.port > _LAST_PORT:
            raise Mistake(f"{flag}: the port must be at most {_LAST_PORT - 2}")
        if address.port and address in taken:
            raise Mistake(f"{flag}: port {address.port} is that of {taken[address]}, too; choose another")
        taken[address] = flag
        if address.port and (problem := unbindable(address)):
            raise Mistake(f"{flag}: cannot listen on {address}: {problem}; choose another port")


def _wanted(settings: UpSettings) -> Iterator[tuple[str, Address]]:
    yield f"--http {settings.http}", parse_address(settings.http)
    yield f"--grpc {settings.grpc}", parse_address(settings.grpc)
    if settings.node:
        flag = f"--node-listen {settings.node_listen}" if settings.node_listen else f"--advertise {settings.advertise}"
        yield flag, parse_address(settings.node_address)
    if settings.metrics:
        flag = f"--metrics {settings.metrics} (takes three ports in a row: gateway, worker, store)"
        for by in range(3):
            yield flag, parse_address(settings.metrics).offset(by)


def unbindable(address: Address) -> str:
    """Return why `address` cannot be bound, or "". One address family of a name is enough."""
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
