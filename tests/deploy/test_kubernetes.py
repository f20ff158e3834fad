"""The manifests: valid for Kubernetes, and of one mind with the programs and with each other.

Kinds of the three operators have no schema here; what of them matters is asked for by name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agentmem.process.cluster_tls import CA, CERT, KEY
from agentmem.process.sockets import parse_address
from cache_service.cluster.postgres.settings import Settings as PostgresSettings
from gateway.http.middleware import ALIVE, READY

from .commands import DEPLOY, Started, started
from .compose_file import environment, instructions
from .test_docker import DOCKERFILE

DIRECTORY = DEPLOY / "kubernetes"
OF_OPERATORS = ("postgresql.cnpg.io", "cert-manager.io", "monitoring.coreos.com")
OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()
CONNECTIONS = PostgresSettings.writers + PostgresSettings.readers + 3


def documents() -> list[dict[str, Any]]:
    paths = sorted(path for path in DIRECTORY.glob("*.yaml") if path.name != "kustomization.yaml")
    return [document for path in paths for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def one(kind: str, name: str) -> Any:
    (found,) = [each for each in documents() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


SET = one("StatefulSet", "agentmem")["spec"]
POD = SET["template"]["spec"]
NODE, PROXY = POD["containers"]
NAMES = [f"agentmem-{number}" for number in range(SET["replicas"])]


def filled_in(name: str) -> Started:
    given = {"POD_NAME": name, "POD_NAMESPACE": "agentmem"}
    words = [re.sub(r"\$\((\w+)\)", lambda match: given[match[1]], word) for word in NODE["args"]]
    told = {each["name"]: each["value"] for each in NODE["env"] if "value" in each}
    (url,) = [each["name"] for each in NODE["env"] if "secretKeyRef" in each.get("valueFrom", {})]
    assert NODE["command"][:2] == ["tini", "--"]
    command = [*NODE["command"][2:], *words]
    return started(command, {**environment(DOCKERFILE), **told, url: "postgresql://u:p@agentmem-db-rw/agentmem"})


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_takes_them(version: str) -> None:
    checked = 0
    for document in documents():
        if document["apiVersion"].split("/")[0] not in OF_OPERATORS:
            kubernetes_validate.validate(document, version, strict=True)
            checked += 1
    assert checked >= 7


def test_all_are_applied_in_one_namespace() -> None:
    listed = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text())
    assert sorted(listed["resources"]) == sorted(p.name for p in DIRECTORY.glob("*.yaml") if p.stem != "kustomization")
    spaces = {each["metadata"].get("namespace") for each in documents() if each["kind"] != "Namespace"}
    assert spaces == {listed["namespace"]} == {one("Namespace", "agentmem")["metadata"]["name"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_node_has_the_certificate_of_the_name_that_it_advertises(name: str) -> None:
    node = filled_in(name)
    assert node.up.node == name and node.store.cluster.get_secret_value()
    certificate = one("Certificate", name)["spec"]
    assert certificate["dnsNames"] == [parse_address(node.up.advertise).host]
    headless = one("Service", SET["serviceName"])
    expected = f"{name}.{SET['serviceName']}.agentmem.svc.cluster.local"
    assert certificate["dnsNames"] == [expected]
    assert headless["spec"]["clusterIP"] == "None" and headless["spec"]["publishNotReadyAddresses"]
    (tls,) = [volume["projected"] for volume in POD["volumes"] if volume["name"] == "tls"]
    (source,) = [each["secret"] for each in tls["sources"] if each["secret"]["name"] == certificate["secretName"]]
    (mount,) = [each["mountPath"] for each in NODE["volumeMounts"] if each["name"] == "tls"]
    there = {each["key"]: Path(mount, each["path"]) for each in source["items"]}
    assert node.up.cluster_tls is not None
    assert there == {
        key: node.up.cluster_tls / file for key, file in (("ca.crt", CA), ("tls.crt", CERT), ("tls.key", KEY))
    }


def test_ports_and_probes_are_the_gateways() -> None:
    node = filled_in(NAMES[0])
    ports = {port["name"]: port["containerPort"] for port in NODE["ports"]}
    assert ports == {
        "http": parse_address(node.gateway.http).port,
        "grpc": parse_address(node.gateway.grpc).port,
        "nodes": parse_address(node.gateway.node_address).port,
    }
    probes = {name: NODE[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": ALIVE,
        "liveness": ALIVE,
        "readiness": READY,
    }
    assert {probe["port"] for probe in probes.values()} == {"http"}


def test_a_pod_has_the_time_to_leave() -> None:
    slept = float(NODE["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > slept + filled_in(NAMES[0]).stop_seconds


def test_one_label_selects_the_nodes() -> None:
    label = SET["template"]["metadata"]["labels"]
    assert SET["selector"]["matchLabels"] == label
    assert all(one("Service", name)["spec"]["selector"] == label for name in ("agentmem", "agentmem-nodes"))
    selectors = {"PodDisruptionBudget": "selector", "NetworkPolicy": "podSelector", "PodMonitor": "selector"}
    for kind, selector in selectors.items():
        assert one(kind, "agentmem")["spec"][selector]["matchLabels"] == label, kind


def test_what_is_written_is_on_a_volume() -> None:
    node = filled_in(NAMES[0])
    mounts = {each["mountPath"]: each for each in NODE["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in SET["volumeClaimTemplates"]}
    data = node.up.data_directory
    assert str(data) not in mounts, "a new volume's root has lost+found, and a store begins in an empty directory"
    assert mounts[str(data.parent)]["name"] in claims
    assert str(node.up.run_directory) in mounts and "/tmp" in mounts
    assert mounts[environment(DOCKERFILE)["HF_HOME"].rpartition("/")[0]]["name"] in claims
    uid = dict(instructions(DOCKERFILE))["USER"].partition(":")[0]
    assert POD["securityContext"]["runAsUser"] == int(uid) == POD["securityContext"]["fsGroup"]


def test_keys_are_for_the_gateway_alone() -> None:
    """It refuses a file that its group can read, as those of a Secret are."""
    (copy,) = POD["initContainers"]
    keys = str(filled_in(NAMES[0]).gateway.keys)
    assert copy["command"][:3] == ["install", "-m", "0600"] and copy["command"][-1] == keys


def test_prometheus_reaches_each_page() -> None:
    node = filled_in(NAMES[0])
    pages = {"gateway": node.gateway.metrics, "worker": node.worker.metrics, "store": node.store.metrics}
    config = one("ConfigMap", "agentmem-metrics-proxy")["data"]["haproxy.cfg"]
    passed = re.findall(r"listen (\w+)\n\s+bind :(\d+)\n\s+http-request .+\n\s+server here (\S+)", config)
    assert {name: target for name, _, target in passed} == pages
    ports = {port["name"]: port["containerPort"] for port in PROXY["ports"]}
    assert {f"m-{name}": int(port) for name, port, _ in passed} == ports
    endpoints = one("PodMonitor", "agentmem")["spec"]["podMetricsEndpoints"]
    assert [each["port"] for each in endpoints] == [*ports]
    for each in endpoints:
        labels = {rule["targetLabel"]: rule.get("replacement") for rule in each["relabelings"]}
        assert labels == {"job": "agentmem", "service": each["port"].removeprefix("m-"), "instance": None}
    let_in = one("NetworkPolicy", "agentmem")["spec"]["ingress"]
    assert {"port": min(ports.values()), "endPort": max(ports.values()), "protocol": "TCP"} in let_in[-1]["ports"]
    assert all("nodes" not in {port["port"] for port in rule["ports"]} or rule.get("from") for rule in let_in)


def test_the_database_has_connections_for_all() -> None:
    parameters = one("Cluster", "agentmem-db")["spec"]["postgresql"]["parameters"]
    assert int(parameters["max_connections"]) > SET["replicas"] * CONNECTIONS + 50
