"""The command as its user sees it, where there is little to see. `tests/system/test_top.py` has the rest."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from agentmem.addresses import parse_address
from gateway.cli.main import main
from gateway.cli.mistakes import Mistake
from gateway.cli.top.command import addresses


def test_each_process_has_its_page() -> None:
    assert addresses("127.0.0.1:9464", None, None) == {
        "gateway": "127.0.0.1:9464",
        "worker": "127.0.0.1:9465",
        "store": "127.0.0.1:9466",
    }
    assert addresses("[::1]:65535", "a:1", "[::1]:2") == {"gateway": "[::1]:65535", "worker": "a:1", "store": "[::1]:2"}
    assert parse_address(addresses("[::1]:5", None, "b:2")["worker"]) == ("::1", 6)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--metrics", "9464"], "--metrics: '9464' is not HOST:PORT"),
        (["--metrics", ""], "--metrics: '' is not HOST:PORT"),
        (["--metrics", "127.0.0.1:0"], "--metrics: 127.0.0.1:0 has no port that can be read"),
        (["--metrics", "127.0.0.1:65534"], "--metrics: worker and store have the next two ports"),
        (["--store-metrics", "x"], "--store-metrics: 'x' is not HOST:PORT"),
        (["--worker-metrics", "x:0"], "--worker-metrics: x:0 has no port that can be read"),
        (["--gateway", "x"], "--gateway: 'x' is not HOST:PORT"),
        (["--interval", "0"], "Invalid value for '--interval'"),
        (["--agents", "-1"], "Invalid value for '--agents'"),
        (["--client-key", "x"], "--client-cert and --client-key go together"),
    ],
)
def test_what_there_is_to_mend_is_said_before_anything_is_read(arguments: list[str], told: str) -> None:
    said = CliRunner().invoke(main, ["top", *arguments])
    assert said.exit_code == 2
    assert f"Error: {told}" in said.stderr
    assert said.stdout == ""


def test_a_mistake_is_one() -> None:
    with pytest.raises(Mistake):
        addresses("127.0.0.1:65535", "a:1", None)


@pytest.mark.parametrize("flags", [["--once"], [], ["--once", "--json"]])
def test_where_nothing_answers_that_is_said_and_what_to_do(flags: list[str]) -> None:
    nowhere = ["--gateway", "127.0.0.1:1", "--metrics", "127.0.0.1:2"]
    said = CliRunner().invoke(main, ["top", *nowhere, "--interval", "0.2", *flags])
    assert said.exit_code == 1
    assert said.stderr.startswith("Error: nothing answers; start Agentmem with `agentmem up`")
    if "--json" in flags:
        (line,) = said.stdout.splitlines()
        assert [one["state"] for one in json.loads(line)["processes"]] == ["down"] * 3
    else:
        assert "store: nothing listens at 127.0.0.1:4" in said.stdout
        assert said.stdout.count("no gateway answers at 127.0.0.1:1") == 1


def test_a_locale_that_lacks_letters_costs_only_these() -> None:
    nowhere = ["--gateway", "127.0.0.1:1", "--metrics", "127.0.0.1:2", "--interval", "0.2"]
    said = CliRunner(charset="iso-8859-1").invoke(main, ["top", *nowhere])
    assert said.exit_code == 1
    assert "KV: loads ?/s · stores ?/s" in said.stdout
