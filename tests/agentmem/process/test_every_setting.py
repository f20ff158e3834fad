from __future__ import annotations

from pathlib import Path

import pytest

from agentmem.process.settings import CONFIG_VARIABLE, ServiceSettings, load
from gateway.cli.up.settings import UpSettings, service_arguments
from tests.every_setting import EXAMPLES, PASSED_ON, Example

EACH = [(settings, name) for settings, examples in EXAMPLES.items() for name in examples]


def flags(name: str, example: Example) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(example.value, bool):
        return [f"--{flag}" if example.value else f"--no-{flag}", *example.with_also]
    return [part for word in example.flag for part in (f"--{flag}", word)] + list(example.with_also)


def variable(settings: type[ServiceSettings], name: str) -> str:
    return f"{settings.model_config['env_prefix']}{name}".upper()


@pytest.mark.parametrize("settings", EXAMPLES, ids=lambda settings: settings.toml_table)
def test_every_setting_has_an_example_that_is_not_its_default(settings: type[ServiceSettings]) -> None:
    examples = EXAMPLES[settings]
    assert examples.keys() == settings.model_fields.keys(), "give each setting an entry in tests/every_setting.py"
    defaults = load(settings, [])
    assert not [name for name, example in examples.items() if getattr(defaults, name) == example.value]


@pytest.mark.parametrize(("settings", "name"), EACH)
@pytest.mark.parametrize("source", ["flag", "variable", "toml"])
def test_a_setting_by(
    source: str, settings: type[ServiceSettings], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES[settings][name]
    arguments = list(example.with_also)
    if source == "flag":
        arguments = flags(name, example)
    elif source == "variable":
        monkeypatch.setenv(variable(settings, name), example.variable)
    else:
        file = tmp_path / "agentmem.toml"
        file.write_text(f"[{settings.toml_table}]\n{name.replace('_', '-')} = {example.toml}\n")
        monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    value = getattr(load(settings, arguments), name)
    assert value == example.value
    assert type(value) is type(example.value), "1 is not True, and 8.0 is not 8"


def test_every_setting_of_up_is_passed_on() -> None:
    assert PASSED_ON.keys() == UpSettings.model_fields.keys(), "say in tests/every_setting.py where each setting goes"


@pytest.mark.parametrize("name", PASSED_ON)
def test_up_passes_on(name: str) -> None:
    told = service_arguments(load(UpSettings, flags(name, EXAMPLES[UpSettings][name])))
    for settings, expected in PASSED_ON[name].items():
        assert getattr(load(settings, getattr(told, settings.toml_table)), name) == expected
