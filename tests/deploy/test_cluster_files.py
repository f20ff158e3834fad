from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentmem.process.service import CANNOT_SERVE, WRONG_SETTING
from agentmem.process.sockets import parse_address
from cache_service.cluster.postgres.settings import Settings as PostgresSettings
from cache_service.cluster.postgres.settings import UnsafeServer, connect
from gateway.settings import NodeSettings
from tests import postgres

from .commands import DEPLOY, Started, started
from .compose_file import compose, environment
from .test_docker import DOCKERFILE, volumes
from .unit_file import UnitFile

SYSTEMD = DEPLOY / "systemd" / "cluster"
COMPOSE = DEPLOY / "compose" / "cluster.yml"
NODES = ("a", "b", "c")
UNIT = UnitFile(SYSTEMD / "agentmem-node.service")


def variables(name: str) -> dict[str, str]:
    """Return a file's variables, those in comments too."""
    lines = (SYSTEMD / name).read_text(encoding="utf-8").splitlines()
    found = [re.fullmatch(r"#?([A-Z][A-Z_0-9]*)=(.*)", line) for line in lines]
    return {match[1]: match[2] for match in found if match}


def by_systemd(node: str) -> Started:
    given = {**UNIT.environment, **variables(f"{node}.env"), **variables("database.env")}
    words = [re.sub(r"\$\{(\w+)\}", lambda match: given[match[1]], word) for word in UNIT.command]
    assert not [word for word in words if "$" in word]
    for own in ("NODE", "ADVERTISE", "REMOTE"):
        del given[own]
    return started(words, given)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = compose(COMPOSE)["services"]
    return found


def by_compose(services: dict[str, Any], node: str) -> Started:
    return started(services[node]["command"], {**environment(DOCKERFILE), **services[node]["environment"]})


def all_different_and_all_the_same(nodes: list[Started]) -> None:
    assert [each.up.node for each in nodes] == [*NODES]
    assert len({each.up.advertise for each in nodes}) == len(nodes)
    assert len({each.up.cluster.get_secret_value() for each in nodes}) == 1
    assert len({(each.store.remote, each.store.remote_endpoint) for each in nodes}) == 1
    for each in nodes:
        assert each.store.cluster.get_secret_value() and each.store.remote.startswith("s3://")
        assert isinstance(each.gateway, NodeSettings) and each.gateway.node == each.store.node == each.up.node
        assert each.gateway.keys, "callers come from other machines"


def test_three_nodes_of_systemd() -> None:
    nodes = [by_systemd(node) for node in NODES]
    all_different_and_all_the_same(nodes)
    assert {node.up.cluster_tls for node in nodes} == {Path("/etc/agentmem/tls")}
    assert UNIT.seconds("TimeoutStopSec") > nodes[0].stop_seconds
    assert nodes[0].up.data_directory == Path("/var/lib", UNIT.one("StateDirectory"))
    assert nodes[0].up.run_directory == Path("/run", UNIT.one("RuntimeDirectory"))
    assert UNIT.all("RestartPreventExitStatus") == [str(CANNOT_SERVE), str(WRONG_SETTING)]
    alone = {path.name for path in SYSTEMD.parent.glob("agentmem*.*") if path.suffix in (".service", ".target")}
    assert set(UNIT.all("Conflicts")) == alone, "two stores would take one directory"
    assert "--cluster" not in UNIT.one("ExecStart").split(), "it has the password"


def test_three_nodes_of_compose(services: dict[str, Any]) -> None:
    nodes = [by_compose(services, node) for node in NODES]
    all_different_and_all_the_same(nodes)
    made = services["certificates"]["entrypoint"]
    assert made[2:5] == ["agentmem", "cluster", "certificates"] and made[6:] == [*NODES]
    for each in nodes:
        service = services[each.up.node]
        assert parse_address(each.up.advertise).host == each.up.node, "a service's name is its host"
        assert each.up.cluster_tls == Path(made[5], each.up.node)
        mounted = volumes(service)
        assert mounted[str(each.up.data_directory)] == each.up.node and mounted["/keys"] == "keys"
        assert float(service["stop_grace_period"].removesuffix("s")) > each.stop_seconds
        assert any(place.startswith(f"{each.up.run_directory}:") for place in service["tmpfs"])
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert len(NODES) * (PostgresSettings.writers + PostgresSettings.readers + 3) < 97, "of 100, by default"


@pytest.mark.slow
def test_commits_of_compose_wait_for_the_standby() -> None:
    """Its two scripts with real servers, over Unix sockets: a node takes the first one, and refused it before."""
    scripts = {name: config["content"].replace("$$", "$") for name, config in compose(COMPOSE)["configs"].items()}
    standby = postgres.Server(postgres.directory())
    with postgres.serving(postgres.DURABLE) as primary:
        settings = PostgresSettings(primary.conninfo)
        with pytest.raises(UnsafeServer, match="no synchronous standby is named"):
            connect(settings)
        variables = {"POSTGRES_USER": "agentmem", "POSTGRES_DB": "postgres", "POSTGRES_PASSWORD": "it's secret"}
        assert bash(scripts["replication"], primary, {**variables, "PGHOST": str(primary.root)}).wait(60) == 0
        primary.stop()
        primary.start()
        with primary.connect() as asked:
            assert asked.execute("SELECT count(*) FROM pg_hba_file_rules WHERE error IS NOT NULL").fetchone() == (0,)
        text = scripts["standby"].replace("-h db", f"-h {primary.root}")
        begun = f"exec postgres -k {standby.root} -c listen_addresses= -c shared_buffers=16MB"
        standby.process = bash(text.replace("exec postgres", begun), standby, {})
        try:
            standby.answers()
            with connect(settings) as ledger:
                ledger.execute("CREATE SCHEMA waits")
                (state,) = ledger.execute("SELECT sync_state FROM pg_stat_replication").fetchone() or ("none",)
            assert state == "quorum"
        finally:
            standby.stop()
            shutil.rmtree(standby.root)


def bash(script: str, server: postgres.Server, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """Run a script of the image's, with the server's data directory, as a user who may."""
    as_user = postgres.identity()
    path = f"{postgres.programs()}:{as_user['env']['PATH']}"
    if not server.data.exists():  # as the image has it, where a new volume takes it from
        server.data.mkdir()
        server.data.chmod(0o1777)
        if "user" in as_user:
            shutil.chown(server.data, as_user["user"], as_user["group"])
    as_user["env"] = {**as_user["env"], "PATH": path, "PGDATA": str(server.data), **variables}
    return subprocess.Popen(["bash", "-c", script], start_new_session=True, **as_user)
