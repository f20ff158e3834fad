from pathlib import Path

import pytest
from click.testing import CliRunner

from agentmem.process.settings import SettingsError, load
from cache_service.settings import StoreSettings
from cache_service.tiers.quotas import Quotas
from gateway.cli.main import main
from gateway.cli.up.settings import UpSettings, service_arguments, store_environment
from gateway.settings import GatewaySettings


def test_what_each_service_is_told(tmp_path: Path) -> None:
    settings = load(
        UpSettings,
        ["--model", "demo", "--model", "big=org/big", "--data", str(tmp_path), "--metrics", "127.0.0.1:7000"],
    )
    told = service_arguments(settings)
    run, data = f"--run-dir={tmp_path}/run", f"--data={tmp_path}"
    rest = ["--log-level=info", "--log-format=text", "--grace=10.0"]
    assert told.store == [data, run, "--metrics=127.0.0.1:7002", *rest]
    assert told.worker == [data, "--model=demo", "--model=big=org/big", run, "--metrics=127.0.0.1:7001", *rest]
    assert run in told.gateway
    assert load(GatewaySettings, told.gateway).metrics == "127.0.0.1:7000"


def test_the_worker_is_told_which_models_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--model=demo", "--adapter=demo+a,b=/x", "--adapter=demo+c=/y", "--models=m.toml"]
    further = ["--offline", "--loaded-models=2", "--kv-bits=5/4"]
    told = service_arguments(load(UpSettings, [*given, *further]))
    assert [part for part in told.worker if part in {*given, *further}] == [*given, *further]
    assert not {*given, *further} & {*told.store, *told.gateway}
    assert not {*further} & {*service_arguments(load(UpSettings, given)).worker}
    monkeypatch.setenv("AGENTMEM_OFFLINE", "yes")
    assert "--offline" in service_arguments(load(UpSettings, given)).worker


def test_what_up_has_no_flags_for_is_read_by_the_services(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "agentmem.toml"
    file.write_text("[up]\ngrace = 3\n[store]\nwarm-bytes = 9000\n[store.namespaces]\nteam-a = 50\n")
    monkeypatch.setenv("AGENTMEM_CONFIG", str(file))
    monkeypatch.setenv("AGENTMEM_STORE_NAMESPACE_BYTES", "100")
    told = load(StoreSettings, service_arguments(load(UpSettings, ["--data", str(tmp_path)])).store)
    assert (told.data, told.grace, told.warm_bytes) == (tmp_path, 3, 9000)
    assert told.quotas == Quotas(100, {"team-a": 50})


CLUSTER = [
    *("--cluster", "postgresql://db.local/agentmem", "--node", "a", "--advertise", "a.local:50061"),
    *("--cluster-tls", "/etc/cluster"),
]


def test_a_node_of_a_cluster() -> None:
    told = service_arguments(load(UpSettings, [*CLUSTER, "--cluster-survives", "crash", "--remote", "s3://bucket/p"]))
    node = ["--node=a", "--advertise=a.local:50061", "--cluster-tls=/etc/cluster"]
    for flag in node:
        assert flag in told.store
        assert flag in told.gateway
        assert flag not in told.worker
    assert {"--cluster-survives=crash", "--remote=s3://bucket/p"} <= {*told.store}
    assert not any("postgresql" in word for words in told for word in words)
    assert store_environment(load(UpSettings, CLUSTER)) == {"AGENTMEM_STORE_CLUSTER": "postgresql://db.local/agentmem"}
    assert store_environment(load(UpSettings, [])) == {}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (CLUSTER[2:], "node: set cluster too"),
        (CLUSTER[:2], "cluster: set node, advertise and cluster_tls too"),
        (CLUSTER[:4], "node: set advertise and cluster_tls too"),
        ([*CLUSTER[:2], *CLUSTER[4:]], "advertise, cluster_tls: set node too"),
        (["--node-listen", "0.0.0.0:1"], "node_listen: set node and advertise and cluster_tls too"),
        (["--cluster-survives", "crash"], "cluster_survives: is about the ledger of a cluster"),
        ([*CLUSTER, "--cluster", "mysql://db"], "cluster: is no URL of PostgreSQL"),
        ([*CLUSTER, "--advertise", "0.0.0.0:1"], "advertise: 0.0.0.0:1 is no address that others can connect to"),
        ([*CLUSTER, "--advertise", "a.local:0"], "advertise: a.local:0 is no address that others can connect to"),
        ([*CLUSTER, "--advertise", "a.local"], "advertise: 'a.local' is not HOST:PORT"),
        ([*CLUSTER, "--node", "a b"], "node: 'a b' is no name of a node"),
    ],
)
def test_half_a_node_is_refused(arguments: list[str], problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(UpSettings, arguments)
    assert problem in str(refused.value)


@pytest.mark.parametrize("url", ["postgresql://u:secret@db/x", "postgres://db/x?user=u&password=secret"])
def test_a_password_does_not_belong_on_the_command_line(url: str) -> None:
    refused = CliRunner().invoke(main, ["up", "--cluster", url])
    assert refused.exit_code == 2
    assert "set AGENTMEM_UP_CLUSTER instead" in refused.output and "secret" not in refused.output


def test_it_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_UP_CLUSTER", "postgresql://u:secret@db/x")
    settings = load(UpSettings, CLUSTER[2:])
    assert "secret" not in str(service_arguments(settings))
    assert store_environment(settings)["AGENTMEM_STORE_CLUSTER"].endswith("u:secret@db/x")
