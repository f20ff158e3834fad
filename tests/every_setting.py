"""For every setting of every service a value that is not its default, in all three forms: a setting without an entry
here fails `tests/agentmem/process/test_every_setting.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from agentmem.process.settings import ServiceSettings
from cache_service.settings import StoreSettings
from gateway.cli.up.settings import UpSettings
from gateway.settings import GatewaySettings
from inference_service.settings import WorkerSettings


@dataclass(frozen=True)
class Example:
    """One setting: the words after its flag, its variable, its value in TOML, and what the settings object has.

    `with_also` are flags without which the setting is refused.
    """

    flag: Sequence[str]
    variable: str
    toml: str
    value: Any
    with_also: Sequence[str] = ()


def text(value: str, **more: Any) -> Example:
    return Example([value], value, json.dumps(value), value, **more)


def path(value: str, **more: Any) -> Example:
    return Example([value], value, json.dumps(value), Path(value), **more)


def number(value: float) -> Example:
    return Example([str(value)], str(value), str(value), value)


def texts(*values: str, **more: Any) -> Example:
    return Example(values, json.dumps(values), json.dumps(values), list(values), **more)


def switch(value: bool) -> Example:
    return Example([], json.dumps(value), json.dumps(value), value)


_COMMON = {
    "log_level": text("warning"),
    "log_format": text("json"),
    "otlp": Example(["collector:4317"], "collector:4317", '"collector:4317"', "http://collector:4317"),
    "grace": number(2.5),
    "metrics": text("127.0.0.1:7000"),
    "run_dir": path("/run/elsewhere"),
}
_MODELS = {
    "model": texts("demo", "big=/models/a,b"),
    "models": path("/etc/models.toml"),
    "adapter": texts("demo+a=/x", "demo+b=/y"),
    "offline": switch(True),
}
_PAIR = ["--tls-cert", "/c.pem", "--tls-key", "/k.pem"]
_DOORS = {
    "http": text("127.0.0.1:7001"),
    "grpc": text("[::1]:7002"),
    "keys": path("/etc/keys.json"),
    "tls_cert": path("/cert.pem", with_also=["--tls-key", "/k.pem"]),
    "tls_key": path("/key.pem", with_also=["--tls-cert", "/c.pem"]),
    "tls_client_ca": path("/ca.pem", with_also=_PAIR),
    "ui": switch(False),
    "allowed_host": texts("a.example", "b.example"),
}

_NODE_FLAGS = {"node": "a", "advertise": "a.local:50061", "cluster-tls": "/etc/cluster"}
_CLUSTER_FLAG = ["--cluster", "postgresql://db.local/agentmem"]


def _beside(flag: str, *more: str) -> list[str]:
    return [*(word for name, value in _NODE_FLAGS.items() if name != flag for word in (f"--{name}", value)), *more]


def _node(*more: str) -> dict[str, Example]:
    """Return settings of a node, with `more` flags."""
    return {
        "node": text("a", with_also=_beside("node", *more)),
        "advertise": text("a.local:50061", with_also=_beside("advertise", *more)),
        "node_listen": text("0.0.0.0:50062", with_also=_beside("", *more)),
        "cluster_tls": path("/etc/cluster", with_also=_beside("cluster-tls", *more)),
        "cluster_keys": Example([], "true", "true", True, with_also=_beside("", *more)),
    }


_URL = _CLUSTER_FLAG[1]
_CLUSTER = {
    "cluster": Example([_URL], _URL, json.dumps(_URL), SecretStr(_URL), _beside("")),
    "cluster_survives": text("crash", with_also=_beside("", *_CLUSTER_FLAG)),
}
_NODE_OF_STORE = {
    name: example for name, example in _node(*_CLUSTER_FLAG).items() if name not in ("node_listen", "cluster_keys")
}


EXAMPLES: Mapping[type[ServiceSettings], Mapping[str, Example]] = {
    StoreSettings: _COMMON
    | _CLUSTER
    | _NODE_OF_STORE
    | {
        "data": path("/srv/agentmem"),
        "listen": text("unix:/run/s.sock"),
        "warm_bytes": number(9000),
        "namespace_bytes": number(8000),
        "namespaces": Example(
            ["team-a=50", "team-b=60"],
            '{"team-a": 50, "team-b": 60}',
            "{team-a = 50, team-b = 60}",
            {"team-a": 50, "team-b": 60},
        ),
        "free_bytes_floor": number(7000),
        "remote": text("s3://bucket/kv"),
        "remote_endpoint": text("https://127.0.0.1:9000"),
        "remote_region": text("eu-north-1"),
        "remote_timeout": number(1.5),
    },
    WorkerSettings: _COMMON
    | _MODELS
    | {
        "data": path("/srv/agentmem"),
        "listen": text("unix:/run/w.sock"),
        "store": text("unix:/run/s.sock"),
        "namespace_label": switch(True),
        "dtype": text("bfloat16"),
        "kv_bits": text("5/4"),
        "kv_group_size": number(32),
        "measure_first_bytes": number(7),
        "quality_check": switch(False),
        "speculation": switch(False),
        "context_length": number(4000),
        "default_max_tokens": number(7),
        "pool_bytes": number(9000),
        "free_memory_floor": number(7000),
        "wired": number(1 << 30),
        "keep_warm": number(2.5),
        "typical_tokens": number(512),
        "loaded_models": number(2),
        "swap_wait": number(1.5),
        "min_residency": number(0.5),
        "room_wait": number(3.5),
        "max_requests": number(9),
        "min_restore_tokens": number(5),
    },
    GatewaySettings: _COMMON
    | _DOORS
    | _node()
    | {
        "worker": text("unix:/run/w.sock"),
        "store": text("unix:/run/s.sock"),
        "worker_metrics": text("127.0.0.1:7005"),
        "store_metrics": text("127.0.0.1:7006"),
        "namespace": text("team-a"),
        "cors_origin": texts("https://a.example", "https://b.example"),
        "anonymous": text("forget"),
        "conversation_ttl": number(60.5),
        "conversation_delete_after": number(90.5),
        "max_running": number(3),
        "max_per_minute": number(4),
        "max_body_bytes": number(2048),
        "max_connections": number(5),
        "max_workflows": number(7),
        "stall_limit": number(3.5),
    },
    UpSettings: _COMMON
    | _MODELS
    | _DOORS
    | _node(*_CLUSTER_FLAG)
    | _CLUSTER
    | {
        "data": path("/srv/agentmem"),
        "loaded_models": number(2),
        "context_length": number(4000),
        "kv_bits": text("5/4"),
        "remote": text("s3://bucket/kv"),
    },
}
"""By settings class and name. What two services share stands in one place, as it does in the classes."""

PASSED_ON: Mapping[str, Mapping[type[ServiceSettings], Any]] = {
    **{
        name: dict.fromkeys((StoreSettings, WorkerSettings, GatewaySettings), _COMMON[name].value)
        for name in ("log_level", "log_format", "otlp", "grace", "run_dir")
    },
    "metrics": {GatewaySettings: "127.0.0.1:7000", WorkerSettings: "127.0.0.1:7001", StoreSettings: "127.0.0.1:7002"},
    "data": dict.fromkeys((StoreSettings, WorkerSettings), Path("/srv/agentmem")),
    **{name: {WorkerSettings: example.value} for name, example in _MODELS.items()},
    "loaded_models": {WorkerSettings: 2},
    "context_length": {WorkerSettings: 4000},
    "kv_bits": {WorkerSettings: "5/4"},
    **{name: {GatewaySettings: example.value} for name, example in (_DOORS | _node()).items()},
    "remote": {StoreSettings: "s3://bucket/kv"},
    "cluster": {},
    "cluster_survives": {},
}
"""The services' values of a setting of `agentmem up` that has the value of EXAMPLES, by its name."""
