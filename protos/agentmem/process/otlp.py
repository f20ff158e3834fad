"""Traces, by `--otlp` or OpenTelemetry's variables. OpenTelemetry is imported only if they are on."""

from __future__ import annotations

import os
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from agentmem import tracing
from agentmem.distribution import install
from agentmem.process.settings import SettingsError
from agentmem.process.sockets import collector_url

if TYPE_CHECKING:
    from agentmem.process.otlp_export import Export

FLUSH_SECONDS: Final = 1.0
"""Limit for a process's last spans."""
_CLOSE_SECONDS: Final = 0.5

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_FILES: Final = tuple(
    f"OTEL_EXPORTER_OTLP_{signal}{name}"
    for signal in ("", "TRACES_")
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
)


class Traces:
    """The traces of one process, until `stop`. Raises SettingsError."""

    def __init__(self, service: str, endpoint: str) -> None:
        self._export: Export | None = None
        target = check(endpoint)
        if not target:
            return
        from agentmem.process import otlp_export

        try:
            self._export = otlp_export.start(service, target)
        except (ValueError, RuntimeError, OSError, otlp_export.WrongVariable) as error:
            raise SettingsError(f"OpenTelemetry's settings (OTEL_…) cannot be used: {error}") from error

    def stop(self) -> None:
        """Send remaining spans, for FLUSH_SECONDS at most."""
        export, self._export = self._export, None
        if export is None:
            return
        tracing.record_by(None)
        flushing = threading.Thread(target=export.processor.shutdown, name="last spans", daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
        if flushing.is_alive():
            export.exporter.shutdown()
            flushing.join(_CLOSE_SECONDS)


def check(endpoint: str) -> str:
    """Return where traces go, as http(s)://HOST:PORT, or "" if off. Raises SettingsError, also for a missing extra."""
    place, name = endpoint, "otlp"
    if not place:
        name = next((name for name in _ENDPOINTS if os.environ.get(name)), "")
        place = os.environ.get(name, "")
    if not place or _is_off():
        return ""
    try:
        target = collector_url(place)
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from error
    protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), "grpc")
    if protocol != "grpc":
        raise SettingsError(
            f"{name}: traces go out as OTLP over gRPC, and OpenTelemetry's variables ask for {protocol!r}; set "
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc, and name the collector's port for gRPC (4317)"
        )
    for variable in _FILES:
        path = os.environ.get(variable)
        if path and not os.access(path, os.R_OK):
            raise SettingsError(f"{variable}: {path} cannot be read")
    if not _is_installed():
        raise SettingsError(
            f"{name}: traces need OpenTelemetry, which is not installed; {install('otel')}, or set "
            "OTEL_TRACES_EXPORTER=none"
        )
    return target


def _is_off() -> bool:
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return disabled or os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"


def _is_installed() -> bool:
    try:
        return all(find_spec(name) for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc"))
    except ModuleNotFoundError:
        return False
