"""Where the doors listen, and to whom: settings that `agentmem up` has, too, and passes on to the gateway."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self

from pydantic import Field, field_validator, model_validator

from agentmem import layout
from agentmem.addresses import TcpAddress, is_loopback, parse_address
from agentmem.settings import ServiceSettings
from gateway.tls import TlsFiles

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")


class DoorSettings(ServiceSettings):
    """Base of the settings of whoever opens the doors, or has them opened."""

    http: TcpAddress = Field(layout.HTTP, description="HOST:PORT of the HTTP door; port 0 takes any")
    grpc: TcpAddress = Field(layout.GRPC, description="HOST:PORT of the gRPC door; port 0 takes any")
    keys: Path | None = Field(None, description="file of the keys that callers must show (agentmem keys makes it)")
    tls_cert: Path | None = Field(None, description="PEM file of the certificate and its chain: TLS at both doors")
    tls_key: Path | None = Field(None, description="PEM file of its private key")
    tls_client_ca: Path | None = Field(None, description="PEM file of the CA of clients, which need certificates then")
    allowed_host: list[str] = Field(
        default_factory=list,
        description="name that the HTTP door answers to without keys, besides localhost and loopback; repeatable",
    )

    @field_validator("allowed_host")
    @classmethod
    def _host_names(cls, names: list[str]) -> list[str]:
        for name in names:
            if not _is_host(name):
                raise ValueError(f"{name!r} is not a host's name alone, such as host.docker.internal, or an IP address")
        return names

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca: clients' certificates need TLS; set tls_cert and tls_key too")
        for name, address in self.public.items():
            if self.keys is None and self.tls_client_ca is None:
                raise ValueError(
                    f"{name}: refuses to listen on {address}: callers are not authenticated; set --keys (the file is "
                    "made by `agentmem keys create`) or --tls-client-ca, or listen on 127.0.0.1, [::1] or localhost"
                )
        return self

    @property
    def public(self) -> dict[str, str]:
        """The doors that others than this machine can reach, and their addresses."""
        doors = {"http": self.http, "grpc": self.grpc}
        return {name: text for name, text in doors.items() if not is_loopback(parse_address(text).host)}

    @property
    def tls(self) -> TlsFiles | None:
        """The files of TLS, if it is on."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        client_ca = self.tls_client_ca.expanduser() if self.tls_client_ca else None
        return TlsFiles(self.tls_cert.expanduser(), self.tls_key.expanduser(), client_ca)


def _is_host(text: str) -> bool:
    try:
        return bool(_HOST_NAME.fullmatch(text) or ip_address(text))
    except ValueError:
        return False
