import re
from pathlib import Path

import pytest

from agentmem.process.model_registry import read, register
from agentmem.process.model_sources import DEMO
from agentmem.process.models import ADAPTER_FILES, RegisteredModel


def test_flags_first_then_the_file_then_demo(tmp_path: Path) -> None:
    file = written(tmp_path, "[models.f]\nsource = 'org/f'\n[models.a]\nsource = 'org/a'")
    assert list(register(["z=org/z", "b=org/b"], file=file)) == ["z", "b", "f", "a", DEMO]
    assert list(register([], file=file)) == ["f", "a", DEMO]


@pytest.mark.parametrize("default", ["b", "f", "f+lora", DEMO])
def test_the_files_default_is_first(tmp_path: Path, default: str) -> None:
    adapter(tmp_path / "lora")
    file = written(tmp_path, f"default = '{default}'\n[models.f]\nsource = 'org/f'\nadapters.lora = 'lora'")
    found = register(["z=org/z", "b=org/b"], file=file)
    assert next(iter(found)) == default
    assert sorted(found) == sorted(["z", "b", "f", "f+lora", DEMO])
    assert all(found[model_id].model_id == model_id for model_id in found)


def test_a_default_that_is_not_registered(tmp_path: Path) -> None:
    file = written(tmp_path, "\ndefault = 'x'\n")
    with pytest.raises(ValueError, match=r"models.toml:2:1: default: 'x' is not registered; registered are b, demo"):
        register(["b=org/b"], file=file)


def test_the_demo_model_can_have_settings(tmp_path: Path) -> None:
    found = register([], file=written(tmp_path, "[models.demo]\nsource = 'demo'\npinned = true"))
    assert found == {DEMO: RegisteredModel(DEMO, DEMO, pinned=True)}


@pytest.mark.parametrize("names", [["f=org/other"], [DEMO, "f=org/f"]])
def test_a_name_of_flags_and_file(tmp_path: Path, names: list[str]) -> None:
    file = written(tmp_path, "[models.f]\nsource = 'org/f'")
    with pytest.raises(ValueError, match=r"models.toml:1:1: models.f: another model has this name"):
        register(names, file=file)


def test_adapters_are_models_with_the_settings_of_their_base(tmp_path: Path) -> None:
    lora = str(adapter(tmp_path / "lora=1"))
    (tmp_path / "a+b").mkdir()
    (tmp_path / "a=b").mkdir()
    file = written(tmp_path, "[models.f]\nsource = 'org/f'\nkv_bits = 8\nttl = 5")
    given = [f"f+x={lora}", f"{DEMO}+x={lora}", f"a+b+x={lora}", f"a=b+x={lora}", f"a+y={lora}"]
    found = register([f"{tmp_path}/a+b", f"{tmp_path}/a=b", "a=org/a"], given, file)
    assert next(iter(found)) == "a+b"
    assert found["f+x"] == RegisteredModel("f+x", "org/f", lora, kv_bits="8", ttl=5.0)
    assert found["demo+x"] == RegisteredModel("demo+x", DEMO, lora)
    assert found["a+b+x"] == RegisteredModel("a+b+x", f"{tmp_path}/a+b", lora)
    assert found["a=b+x"] == RegisteredModel("a=b+x", f"{tmp_path}/a=b", lora)
    assert found["a+y"] == RegisteredModel("a+y", "org/a", lora)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "give BASE+NAME=DIRECTORY"),
        ("a", "give BASE+NAME=DIRECTORY"),
        ("a=LORA", "give BASE+NAME=DIRECTORY"),
        ("+x=LORA", "give BASE+NAME=DIRECTORY"),
        ("a+x", "give BASE+NAME=DIRECTORY"),
        ("a+x=", "give BASE+NAME=DIRECTORY"),
        ("a+=LORA", "give BASE+NAME=DIRECTORY"),
        ("b+x=LORA", "'b' is not registered; registered are a, demo"),
        ("a+x+y=LORA", "'x+y' cannot name an adapter"),
        ("a+x=/no/such", "/no/such does not exist"),
        ("a+x=~no-such-user/x", "~no-such-user/x does not exist"),
        ("a+taken=LORA", "the name 'a+taken' is taken"),
        ("a+x=EMPTY", "has no adapter_config.json and no adapters.safetensors"),
    ],
)
def test_adapters_that_are_refused(tmp_path: Path, given: str, said: str) -> None:
    lora = adapter(tmp_path / "lora")
    (tmp_path / "empty").mkdir()
    given = given.replace("LORA", str(lora)).replace("EMPTY", str(tmp_path / "empty"))
    with pytest.raises(ValueError, match=f"--adapter {re.escape(repr(given))}: .*{re.escape(said)}"):
        register(["a=org/a"], [f"a+taken={lora}", given])


def test_an_adapter_without_its_weights(tmp_path: Path) -> None:
    (adapter(tmp_path / "lora") / "adapters.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no adapters.safetensors; give the directory that mlx_lm.lora wrote"):
        register([], [f"demo+x={tmp_path}/lora"])


def test_what_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--model '~no-such-user/m': ~no-such-user/m does not exist"):
        register(["~no-such-user/m"])
    with pytest.raises(ValueError, match=r"source: .*/~no-such-user/m does not exist"):
        register([], file=written(tmp_path, "[models.m]\nsource = '~no-such-user/m'"))


def adapter(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in ADAPTER_FILES:
        (directory / name).touch()
    return directory


def written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "models.toml").write_text(text, encoding="utf-8")
    return tmp_path / "models.toml"


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ValueError) as caught:
        read(written(tmp_path, text))
    return str(caught.value).replace(str(tmp_path), "")


def test_all_keys_and_paths_from_the_files_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights" / "llama").mkdir(parents=True)
    adapter(tmp_path / "loras" / "support")
    monkeypatch.setenv("HOME", str(tmp_path))
    file = read(
        written(
            tmp_path,
            """
            default = "llama"
            [models.llama]
            source = "weights/llama"
            kv_bits = 8
            kv-group-size = 32
            context_length = 4096
            ttl = 600
            pinned = true
            adapters = { support = "./loras/support", again = "~/loras/support" }
            [models."org/model"]
            source = "org/model"
            [models.small]
            source = "demo"
            kv_bits = "5/4"
            [models.home]
            source = "~/weights/llama"
            """,
        )
    )
    base = RegisteredModel("llama", f"{tmp_path}/weights/llama", None, "8", 32, 4096, 600.0, True)
    assert file.default == "llama"
    assert file.models == (
        base,
        RegisteredModel("llama+support", base.source, f"{tmp_path}/loras/support", "8", 32, 4096, 600.0, True),
        RegisteredModel("llama+again", base.source, f"{tmp_path}/loras/support", "8", 32, 4096, 600.0, True),
        RegisteredModel("org/model", "org/model"),
        RegisteredModel("small", DEMO, kv_bits="5/4"),
        RegisteredModel("home", f"{tmp_path}/weights/llama"),
    )


@pytest.mark.parametrize("text", ["", "[models]\n"])
def test_a_file_may_say_nothing(tmp_path: Path, text: str) -> None:
    assert read(written(tmp_path, text)).models == ()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("kv_bits = 7", 'kv_bits: must be "auto", or bits of K and V, as "4", or of each'),
        ("kv_group_size = 16", "kv_group_size: must be 32 or 64"),
        ("context_length = 0", "context_length: must be at least 1"),
        ("context_length = true", "context_length: must be a whole number"),
        ("ttl = 0", "ttl: must be greater than 0.0"),
        ("ttl = inf", "ttl: must be a finite number"),
        ('ttl = "60"', "ttl: must be a number"),
        ("pinned = 1", "pinned: must be true or false"),
        ("adapters = 1", "adapters: must be a table"),
        ("bits = 4", "bits: is not supported; did you mean kv_bits?"),
    ],
)
def test_a_wrong_key_is_named_with_line_table_and_what_it_should_be(tmp_path: Path, key: str, said: str) -> None:
    text = f"# ours\n[models.small]\nsource = 'demo'\n\n[models.m]\nsource = 'demo'\n{key}\n"
    assert refusal(tmp_path, text).startswith(f"/models.toml:7:1: models.m.{said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "/models.toml:1:1: x: is not supported; supported are default, models"),
        ("default = 1", "/models.toml:1:1: default: must be text"),
        ("models = 1", "/models.toml:1:1: models: must be a table"),
        ("[[models]]", "/models.toml:1:1: models: must be a table"),
        ("[models]\nm = 'demo'", "/models.toml:2:1: models.m: must be a table"),
        (
            "[models.m]\nttl = 5",
            '/models.toml:1:1: models.m.source: is missing; give a directory, a hub id, or "demo"',
        ),
        ("[models.m]\nsource = ''", "/models.toml:2:1: models.m.source: must not be empty"),
        ("[models.m]\nsource = './none'", "/models.toml:2:1: models.m.source: /none does not exist"),
        (
            "[models.m]\nsource = 'models.toml'",
            "/models.toml:2:1: models.m.source: /models.toml is not a directory",
        ),
        (
            "[models.m]\nsource = 'a/b/c'",
            ":2:1: models.m.source: a/b/c does not exist, and is no hub id, which would be OWNER/NAME",
        ),
        ("[models.m]\nsource = 'demo'\nkv_bits = 7\nttl = 0", ":4:1: models.m.ttl: must be greater than 0"),
        (
            "[models.m]\nsource = 'demo'\nadapters = { x = 5 }",
            "/models.toml:3:1: models.m.adapters.x: must be text",
        ),
        (
            "[models.m]\nsource = 'demo'\n[models.m.adapters]\nx = 'none'",
            "/models.toml:4:1: models.m.adapters.x: /none does not exist",
        ),
        (
            "[models.m]\nsource = 'demo'\nadapters.x = '.'",
            ":3:1: models.m.adapters.x:  has no adapter_config.json and no adapters.safetensors; give the",
        ),
        (
            "[models.m]\nsource = 'demo'\nadapters.'a b' = '.'",
            "'a b' cannot name an adapter; give a name without spaces, + and =",
        ),
        ("[models.m]\nsource = 'demo'\nkv_bits = 4\nkv-bits = 4", "kv-bits: is not supported; did you mean kv_bits?"),
        ("[models.m", "/models.toml:1:10: is not TOML: "),
        ("[models.m]\n[models.m]", "/models.toml:2:10: is not TOML: "),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none.toml: cannot be read: No such file"):
        read(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="is not UTF-8"):
        read(tmp_path / "x")


def test_errors_name_the_file_as_it_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "x = 1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path))}/models.toml:1:1: x: "):
        read(Path("models.toml"))
