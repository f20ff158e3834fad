"""`agentmem up` imports this, so nothing of the servers, which take long to import, is used here."""

import re
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from agentmem import layout
from agentmem.diagnostics import FileError
from agentmem.process.cluster_tls import ClusterTls, read_cluster_tls
from agentmem.process.settings import ServiceSettings, SettingsError
from agentmem.process.sockets import OptionalLoopbackAddress, OptionalTcpAddress, TcpAddress, is_loopback, parse_address
from agentmem.v1 import types_pb2
from agentmem.validation import DEFAULT_NAMESPACE
from gateway.edge.authorization import check_namespace
from gateway.edge.callers import Authenticator, CallerLimits, Everyone
from gateway.edge.key_file import KeyFile
from gateway.edge.key_ring import DEFAULT_LIMITS, KeyRing, KeySource
from gateway.edge.tls import Tls, TlsFiles

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#@*\sA-Z]+")


class NodeSettings(ServiceSettings):
    """A node of a cluster: what `agentmem up` has, too, and passes on."""

    node: str = Field("", description="this node's name in the cluster, which no other node has")
    advertise: str = Field(
        "", description="HOST:PORT at which the cluster's other nodes reach this one, over TLS with --cluster-tls"
    )
    node_listen: OptionalTcpAddress = Field(
        "", description="HOST:PORT to listen on for them (default: all interfaces, at the port of --advertise)"
    )
    cluster_tls: Path | None = Field(
        None,
        description="directory of ca.pem, node.pem and node-key.pem, by which nodes know each other "
        "(`agentmem cluster certificates` makes them)",
    )

    @field_validator("node")
    @classmethod
    def _is_node(cls, name: str) -> str:
        if name and not _NODE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a node: up to 63 small letters, digits, and . and - between them")
        return name

    @field_validator("advertise")
    @classmethod
    def _can_be_reached(cls, text: str) -> str:
        if not text:
            return text
        address = parse_address(text)
        if not address.port or address.host in ("0.0.0.0", "::"):
            raise ValueError(f"{text} is no address that others can connect to; give this node's host name and a port")
        return str(address)

    @model_validator(mode="after")
    def _all_of_a_node(self) -> Self:
        given = {"node": self.node, "advertise": self.advertise, "cluster_tls": self.cluster_tls}
        missing = [name for name, value in given.items() if not value]
        there = [name for name, value in (given | {"node_listen": self.node_listen}).items() if value]
        if missing and there:
            raise ValueError(f"{', '.join(there)}: set {' and '.join(missing)} too; a node of a cluster has all")
        return self

    @property
    def node_address(self) -> str:
        """As gRPC takes it; port 0 takes any."""
        return self.node_listen or f"[::]:{parse_address(self.advertise).port}"

    def cluster_certificates(self) -> ClusterTls:
        """Read now. Raises SettingsError."""
        if self.cluster_tls is None:
            raise SettingsError("cluster_tls: is not set")
        return read_cluster_tls(self.cluster_tls.expanduser(), parse_address(self.advertise).host)


class ListenSettings(NodeSettings):
    """Where the servers listen, and to whom: what `agentmem up` has, too, and passes on."""

    http: TcpAddress = Field(layout.HTTP, description="HOST:PORT of the HTTP server; port 0 takes any")
    grpc: TcpAddress = Field(layout.GRPC, description="HOST:PORT of the gRPC server; port 0 takes any")
    keys: Path | None = Field(None, description="file of the API keys of callers (agentmem keys makes it)")
    cluster_keys: bool = Field(
        False,
        description="callers need an API key that all nodes of the cluster know (agentmem keys --cluster makes it)",
    )
    tls_cert: Path | None = Field(None, description="PEM file of the certificate and its chain: TLS for HTTP and gRPC")
    tls_key: Path | None = Field(None, description="PEM file of its private key")
    tls_client_ca: Path | None = Field(None, description="PEM file of the CA of clients, which need certificates then")
    ui: bool = Field(True, description="serve the web UI at /ui/ (--no-ui: don't)")
    allowed_host: list[str] = Field(
        default_factory=list,
        description="name that the HTTP server answers to without keys, besides localhost and loopback; repeatable",
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
        if self.cluster_keys and not self.node:
            raise ValueError("cluster_keys: are those of a cluster, and this is no node of one; set keys instead")
        if self.cluster_keys and self.keys is not None:
            raise ValueError(
                "keys and cluster_keys: callers show keys of the one or of the other; `agentmem keys import FILE "
                "--cluster …` brings those of the file into the cluster"
            )
        for name, address in self.public.items():
            if not self.asks_for_keys and self.tls_client_ca is None:
                raise ValueError(
                    f"{name}: refuses to listen on {address}: callers are not authenticated; set --keys (the file is "
                    "made by `agentmem keys create`), --cluster-keys or --tls-client-ca, or listen on 127.0.0.1, [::1] "
                    "or localhost"
                )
        return self

    @property
    def asks_for_keys(self) -> bool:
        return self.keys is not None or self.cluster_keys

    @property
    def public(self) -> dict[str, str]:
        """Servers that others than this machine can reach, by their addresses."""
        servers = {"http": self.http, "grpc": self.grpc}
        return {name: text for name, text in servers.items() if not is_loopback(parse_address(text).host)}

    @property
    def tls(self) -> TlsFiles | None:
        if self.tls_cert is None or self.tls_key is None:
            return None
        client_ca = self.tls_client_ca.expanduser() if self.tls_client_ca else None
        return TlsFiles(self.tls_cert.expanduser(), self.tls_key.expanduser(), client_ca)


def _is_host(text: str) -> bool:
    try:
        return bool(_HOST_NAME.fullmatch(text) or ip_address(text))
    except ValueError:
        return False


_DAY: Final = 24 * 3600.0


class GatewaySettings(ListenSettings):
    """Serves the APIs of OpenAI and Anthropic over HTTP, and the contract over gRPC, before one worker and its store.

    Each flag is also a variable, AGENTMEM_GATEWAY_…, and a key of the table [gateway] in the TOML file that
    AGENTMEM_CONFIG names.
    """

    model_config = SettingsConfigDict(env_prefix="AGENTMEM_GATEWAY_", cli_prog_name="agentmem-gateway")
    toml_table: ClassVar[str] = "gateway"

    run_dir: Path | None = Field(None, description=f"directory of the sockets (default: {layout.DATA / layout.RUN})")
    worker: str = Field("", description="the worker's gRPC target (default: unix:RUN_DIR/worker.sock)")
    store: str = Field("", description="the cache store's gRPC target (default: unix:RUN_DIR/store.sock)")
    metrics: OptionalLoopbackAddress = Field(layout.metrics(), description="HOST:PORT of /metrics; empty: none")
    worker_metrics: OptionalTcpAddress = Field(
        "", description="HOST:PORT of the worker's /metrics, for the overview (default: the port after --metrics)"
    )
    store_metrics: OptionalTcpAddress = Field(
        "", description="HOST:PORT of the store's /metrics, for the overview (default: the port after the worker's)"
    )
    namespace: Annotated[str, AfterValidator(check_namespace)] = Field(
        DEFAULT_NAMESPACE, description="the namespace of all callers; with --keys each key has its own"
    )
    cors_origin: list[str] = Field(
        default_factory=list, description="origin of web pages that may call the HTTP server, or *; repeatable"
    )
    anonymous: Literal["keep", "forget"] = Field(
        "keep", description="what happens to conversations without X-Agent-ID: keep (found again by content), or forget"
    )
    conversation_ttl: float = Field(
        7 * _DAY, ge=0, description="idle seconds until the KV of such a conversation expires; 0: never"
    )
    conversation_delete_after: float = Field(
        30 * _DAY, ge=0, description="idle seconds until such a conversation is deleted; 0: never"
    )
    max_running: int | None = Field(
        None, ge=0, description="requests of a caller that may run at once; 0: any number (default: with --keys 64)"
    )
    max_per_minute: int | None = Field(
        None, ge=0, description="requests of a caller in a minute; 0: any number (default: with --keys 1200)"
    )
    max_body_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1024,
        description="largest body of an HTTP request, and message over gRPC (there at least 512 KiB)",
    )
    max_connections: int = Field(512, ge=1, description="connections to each server at once")
    max_workflows: int = Field(16, ge=1, description="workflow runs of a namespace that go on at once")
    stall_limit: float = Field(30.0, gt=0, description="seconds a reader may take nothing before its stream is aborted")
    grace: float = Field(layout.GRACE_SECONDS, ge=0, description="seconds that running requests get at shutdown")

    @field_validator("cors_origin")
    @classmethod
    def _origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is no origin as browsers send it, such as https://app.example.org: in small letters, "
                    "with the port if it is unusual, and without a path or a / at the end; nor is it *"
                )
        return origins

    def limits(self, default: CallerLimits) -> CallerLimits:
        """Return what a caller may ask for; `default` where nothing is set."""
        return default.overridden(self.max_running, self.max_per_minute)

    @property
    def expiry(self) -> types_pb2.Expiry:
        """Idle times of agents that are found by their conversation."""
        times = types_pb2.Expiry()
        if self.conversation_ttl:
            times.ttl.FromTimedelta(timedelta(seconds=self.conversation_ttl))
        if self.conversation_delete_after:
            times.delete_after.FromTimedelta(timedelta(seconds=self.conversation_delete_after))
        return times

    @property
    def run_directory(self) -> Path:
        return layout.run_directory(layout.DATA, self.run_dir)

    @property
    def worker_target(self) -> str:
        """Where the worker listens."""
        return self.worker or layout.worker_socket(self.run_directory)

    @property
    def store_target(self) -> str:
        """Where the cache store listens."""
        return self.store or layout.store_socket(self.run_directory)


def check_files(settings: GatewaySettings) -> None:
    """Raise SettingsError for files of keys and TLS that cannot be used."""
    _key_file(settings)
    if settings.tls:
        Tls(settings.tls)
    if settings.node:
        settings.cluster_certificates()


def authenticator(settings: GatewaySettings, of_cluster: KeySource | None) -> Authenticator:
    """`of_cluster` are the cluster's keys, if it is by those. Raises SettingsError."""
    if settings.cluster_keys and of_cluster is None:
        raise SettingsError("cluster_keys: this installation has no clusters")
    source = of_cluster or _key_file(settings)
    if source is None:
        return Everyone(settings.namespace, settings.limits(CallerLimits()))
    return KeyRing(source, settings.limits(DEFAULT_LIMITS))


def _key_file(settings: GatewaySettings) -> KeyFile | None:
    if settings.keys is None:
        return None
    try:
        return KeyFile(settings.keys.expanduser())
    except FileError as error:
        raise SettingsError(f"keys: {error}") from error
