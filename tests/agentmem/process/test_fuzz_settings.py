"""Settings of any text: flag, variable and TOML file say the same, or all refuse it by the setting's name; and what is
accepted can be used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentmem.process.settings import CONFIG_VARIABLE, ServiceSettings, SettingsError, load
from cache_service.settings import StoreSettings
from gateway.cli.up.settings import UpSettings, service_arguments
from gateway.edge.callers import CallerLimits
from gateway.settings import GatewaySettings
from inference_service.settings import WorkerSettings
from tests.every_setting import EXAMPLES

SERVICES = list(EXAMPLES)
SCALARS = {
    each: sorted(name for name, one in EXAMPLES[each].items() if not isinstance(one.value, bool | list | dict))
    for each in SERVICES
}
TEXTS = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
    st.sampled_from([example.variable for examples in EXAMPLES.values() for example in examples.values()]),
    st.sampled_from(
        ["null", "None", "nan", "inf", "1e999", "1e300", "1e12", "9" * 19, "9" * 30, "-1", "-0", "0", "1_0"]
    ),
    st.sampled_from(["", " ", "/", ".", "~", "a,b", "[a]", '["a"]', '{"a": 1}', '"', "\\", "=", "--data", "é", "🦀"]),
    st.integers().map(str),
    st.floats().map(str),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab-_", max_size=3), inner, max_size=3),
    max_leaves=5,
)


def outcome(name: str, read: Callable[[], ServiceSettings]) -> Any:
    """The setting's value, or SettingsError where it was refused by its name."""
    try:
        return getattr(read(), name)
    except SettingsError as error:
        told = str(error)
    assert name in told.replace("-", "_"), f"the message does not name {name}: {told}"
    return SettingsError


def in_file(service: type[ServiceSettings], name: str, value: str) -> Callable[[], ServiceSettings]:
    def read() -> ServiceSettings:
        with TemporaryDirectory() as directory:
            path = Path(directory) / "agentmem.toml"
            path.write_text(f"[{service.toml_table}]\n{name} = {value}\n", encoding="utf-8")
            with mock.patch.dict(os.environ, {CONFIG_VARIABLE: str(path)}):
                return load(service, [])

    return read


def in_variable(service: type[ServiceSettings], name: str, value: str) -> Callable[[], ServiceSettings]:
    def read() -> ServiceSettings:
        variable = f"{service.model_config['env_prefix']}{name}".upper()
        with mock.patch.dict(os.environ, {variable: value}):
            return load(service, [])

    return read


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf", "null": "''"}.get(told := json.dumps(value), told)


@pytest.mark.parametrize("service", SERVICES, ids=lambda each: each.toml_table)
@given(data=st.data())
def test_any_text_by_flag_variable_and_file(service: type[ServiceSettings], data: st.DataObject) -> None:
    name, value = data.draw(st.sampled_from(SCALARS[service])), data.draw(TEXTS)
    flag = f"--{name.replace('_', '-')}={value}"
    by_flag = outcome(name, lambda: load(service, [flag, *EXAMPLES[service][name].with_also]))
    others = [outcome(name, in_variable(service, name, value)), outcome(name, in_file(service, name, toml(value)))]
    if not EXAMPLES[service][name].with_also:
        assert [by_flag, *others] == [by_flag] * 3


@pytest.mark.parametrize("service", SERVICES, ids=lambda each: each.toml_table)
@given(data=st.data())
def test_any_value_in_the_file(service: type[ServiceSettings], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(service.model_fields)))
    outcome(name, in_file(service, name, toml(data.draw(VALUES))))


TEXTS_OF_UP = sorted(name for name, field in UpSettings.model_fields.items() if field.annotation is not bool)


@given(given=st.lists(st.tuples(st.sampled_from(TEXTS_OF_UP), TEXTS), max_size=3))
@example(given=[("keys", "-k.json")])
@example(given=[("model", "-m")])
def test_what_up_takes_its_services_take(given: list[tuple[str, str]]) -> None:
    try:
        up = load(UpSettings, [f"--{name.replace('_', '-')}={value}" for name, value in given])
    except SettingsError:
        return
    told = service_arguments(up)
    store, worker = load(StoreSettings, told.store), load(WorkerSettings, told.worker)
    gateway = load(GatewaySettings, told.gateway)
    assert (worker.model, worker.adapter, worker.models) == (up.model, up.adapter, up.models)
    assert (gateway.http, gateway.grpc, gateway.keys, gateway.tls) == (up.http, up.grpc, up.keys, up.tls)
    assert gateway.allowed_host == up.allowed_host
    assert {store.grace, worker.grace, gateway.grace} == {up.grace}
    assert store.data_directory == worker.data_directory == up.data_directory


@given(given=st.dictionaries(st.sampled_from(SCALARS[GatewaySettings]), TEXTS, max_size=3))
def test_what_the_gateway_takes_it_can_use(given: dict[str, str]) -> None:
    try:
        gateway = load(GatewaySettings, [f"--{name.replace('_', '-')}={value}" for name, value in given.items()])
    except SettingsError:
        return
    assert gateway.expiry.ttl.seconds >= 0
    assert gateway.limits(CallerLimits(1, 1)).running >= 0
    assert gateway.worker_target and gateway.store_target


@given(given=st.dictionaries(st.sampled_from(SCALARS[StoreSettings]), TEXTS, max_size=3))
def test_what_the_store_takes_it_can_use(given: dict[str, str]) -> None:
    try:
        store = load(StoreSettings, [f"--{name.replace('_', '-')}={value}" for name, value in given.items()])
    except SettingsError:
        return
    assert store.limits.low <= store.limits.high
    assert store.remote_settings.timeout > 0
    assert store.address.startswith("unix:")
