"""`agentmem models search` and `pull` against a hub on localhost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentmem.process.checkup import parse
from inference_service.models.sources import registry
from tests.model_hub import Hub, Repository, model_hub, telling

COMMAND = (sys.executable, "-m", "gateway.cli.main", "models")
DEMO = Path(registry([])["demo"].source)
LARGE = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


class Ended(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def rows(self) -> dict[str, list[str]]:
        """Lines of the table by their first word, as words."""
        return {words[0]: words[1:] for words in map(str.split, self.out.splitlines()) if words}


def demo() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}


def repositories() -> dict[str, Repository]:
    large = {"config.json": json.dumps(LARGE).encode(), "model.safetensors": b"x"}
    claimed = {"model.safetensors": 10**13}
    mamba = {"config.json": b'{"model_type": "of-nobody"}', "model.safetensors": b"x"}
    return {
        "mlx-community/Tiny-4bit": Repository(demo(), downloads=70),
        "mlx-community/Large-4bit": Repository(large, claimed, downloads=90),
        "mlx-community/Odd-4bit": Repository(mamba, downloads=60),
        "someone/tiny-mlx": Repository(demo(), downloads=80),
        "someone/tiny": Repository(demo(), downloads=99, tags=("text-generation",)),
        "someone/gguf-mlx": Repository({"model.gguf": b"x"}, downloads=5),
        "someone/\x1b[2Jtiny-mlx": Repository(demo(), downloads=1),
        "meta/Gated-mlx": Repository(demo(), fail_files={"config.json": 401}, gated=True, downloads=4),
    }


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with model_hub() as running:
        running.repositories = repositories()
        yield running


@pytest.fixture(scope="module")
def environment(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return hub.environment(tmp_path_factory.mktemp("hf"))


@pytest.fixture(scope="module")
def child(environment: dict[str, str]) -> Iterator[Any]:
    with telling("tests.inference_service.hub.child", environment) as told:
        yield told


@pytest.fixture
def models(child: Any, hub: Hub) -> Any:
    hub.seen.clear()

    def run(*arguments: str, **environment: str) -> Ended:
        told = child(arguments=arguments, environment=environment)
        assert "bug" not in told, told
        ended = Ended(**told)
        assert not [each for each in ("hf_", "://", "\x1b", "Traceback") if each in ended.out + ended.err]
        return ended

    return run


@pytest.mark.slow
def test_without_words_the_recommended_ones(models: Any, hub: Hub, environment: dict[str, str]) -> None:
    ended = models("search")
    assert ended.status == 0, ended.err
    rows = ended.rows
    found = [name for name in rows if "/" in name]
    assert found == ["mlx-community/Large-4bit", "mlx-community/Tiny-4bit", "mlx-community/Odd-4bit"]
    assert "no" in rows["mlx-community/Large-4bit"]
    assert rows["mlx-community/Tiny-4bit"][4] == "yes"
    assert "no" in rows["mlx-community/Odd-4bit"] and "of-nobody" in ended.out
    assert "agentmem models pull mlx-community/Tiny-4bit" in ended.out
    assert not Path(environment["HF_HOME"]).joinpath("hub").exists(), "nothing is kept of a search"
    assert not hub.fetched("model.safetensors")


@pytest.mark.slow
def test_all_words_are_looked_for(models: Any) -> None:
    found = json.loads(models("search", "TINY", "someone", "--json").out)
    assert [each["model_id"] for each in found] == ["someone/tiny-mlx", "someone/\x1b[2Jtiny-mlx"]
    wider = json.loads(models("search", "tiny", "someone", "--any-format", "--json", "--limit", "1").out)
    assert [each["model_id"] for each in wider] == ["someone/tiny"]
    ended = models("search", "nothing-like-it")
    assert ended.status == 1 and "no such model; take fewer words, or --any-format" in ended.err


@pytest.mark.slow
def test_what_cannot_be_known_is_said(models: Any) -> None:
    ended = models("search", "mlx")
    assert "gated; 127.0.0.1 has none that the worker may read (401)" in ended.out
    found = {each["model_id"]: each for each in json.loads(models("search", "mlx", "--json").out)}
    assert "has no config.json or no model" in found["someone/gguf-mlx"]["problem"]
    assert found["meta/Gated-mlx"]["fits"] is None and found["meta/Gated-mlx"]["gated"] is True
    assert "HF_TOKEN to a token" in models("pull", "meta/Gated-mlx").err


def test_a_pull(models: Any, hub: Hub) -> None:
    ended = models("pull", "mlx-community/Tiny-4bit")
    assert ended.status == 0, ended.err
    assert "fits: weights" in ended.out and "100% of 11" in ended.out
    assert "agentmem chat --model mlx-community/Tiny-4bit" in ended.out
    hub.seen.clear()
    assert "is here already" in models("pull", "mlx-community/Tiny-4bit").out
    assert hub.seen == []
    rows = models("search", "tiny-4bit").rows
    assert rows["mlx-community/Tiny-4bit"][-2:] == ["is", "here"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("mlx-community/Large-4bit", "does not fit: its weights take 10.0 TB"),
        ("mlx-community/Odd-4bit", "of-nobody"),
        ("someone/gguf-mlx", "which mlx-lm loads; take one that has"),
        ("someone/none", "has none that the worker may read (404): look at the spelling"),
    ],
)
def test_what_would_not_run_is_refused_before_it_is_fetched(models: Any, hub: Hub, model: str, said: str) -> None:
    ended = models("pull", model)
    assert ended.status == 1 and said in ended.err, ended
    assert not hub.fetched("model.safetensors")


def test_anyway_but_not_without_room_on_the_disk(models: Any, hub: Hub) -> None:
    assert models("pull", "mlx-community/Odd-4bit", "--anyway").status == 0
    hub.repositories["org/vast"] = Repository(demo(), {"model.safetensors": 10**18})
    ended = models("pull", "org/vast", "--anyway")
    assert ended.status == 1 and "make room there, or set HF_HOME to a directory on a larger disk" in ended.err


def test_one_odd_model_does_not_end_a_search(models: Any, hub: Hub) -> None:
    config = json.loads(demo()["config.json"])

    def odd(**said: object) -> Repository:
        return Repository(demo(), said=said)

    def configured(data: bytes) -> Repository:
        return Repository(demo() | {"config.json": data})

    sizes = {name: len(data) for name, data in demo().items()}
    deep = {**config, "text_config": {"num_hidden_layers": 10**9}}
    odd_ones = {
        "odd/no-context": configured(json.dumps({**config, "max_position_embeddings": 0}).encode()),
        "odd/list-config": configured(b"[1]"),
        "odd/list-of-parameters": odd(safetensors={"parameters": [1], "total": 1}),
        "odd/size-as-text": odd(siblings=[{"rfilename": name, "size": str(size)} for name, size in sizes.items()]),
        "odd/deep-layers": configured(json.dumps(deep).encode()),
        "odd/long-config": configured(b" " * (2 << 20)),
    }
    hub.repositories |= odd_ones
    try:
        ended = models("search", "odd/", "--json")
    finally:
        for name in odd_ones:
            del hub.repositories[name]
    assert ended.status == 0, ended.err
    found = {each["model_id"]: each for each in json.loads(ended.out)}
    assert found.keys() == odd_ones.keys()
    assert "does not say how long the context is" in found["odd/no-context"]["problem"]
    assert "does not answer as a model hub does" in found["odd/list-config"]["problem"]
    assert "does not answer as a model hub does" in found["odd/list-of-parameters"]["problem"]
    assert found["odd/size-as-text"]["fits"] is True
    assert "1000000000 layers" in found["odd/deep-layers"]["problem"]
    assert "has a config.json of 2,097,152 bytes" in found["odd/long-config"]["problem"]


@pytest.mark.slow
def test_for_other_commands_only_what_was_judged_is_refused(models: Any, hub: Hub) -> None:
    """Their worker has settings that are not known here, as the context's length."""
    config = json.loads(demo()["config.json"])
    del config["max_position_embeddings"]
    hub.repositories["org/unsaid"] = Repository(demo() | {"config.json": json.dumps(config).encode()})
    assert models("pull", "org/unsaid").status == 1
    ended = models("fetch", "org/unsaid")
    assert ended.status == 0 and "100% of 11" in ended.out, ended
    ended = models("fetch", "mlx-community/Large-4bit")
    assert ended.status == 1 and "does not fit" in ended.err
    assert "`agentmem models pull mlx-community/Large-4bit --anyway` downloads it even so" in ended.err
    ended = models("fetch", "meta/Gated-mlx")
    assert ended.status == 1 and "HF_TOKEN" in ended.err and "even so" not in ended.err
    assert models("fetch", "org/none").status == 1
    hub.repositories["org/down"] = Repository(demo(), status=503)
    ended = models("fetch", "org/down")
    assert ended.status == 0 and "not downloaded now" in ended.out and "the worker tries again" in ended.out
    hub.repositories["org/breaks"] = Repository(demo(), fail_files={"model.safetensors": 503})
    assert models("fetch", "org/breaks").status == 0


def test_json_of_a_pull(models: Any, hub: Hub) -> None:
    hub.repositories["org/json"] = Repository(demo())
    first, *steps, last = map(json.loads, models("pull", "org/json", "--json").out.splitlines())
    assert first["missing_bytes"] == first["total_bytes"] > 11e6 and first["fits"] is True
    assert steps[-1]["progress"] == 1.0
    assert Path(last["path"], "config.json").exists()


def test_without_a_network(models: Any, hub: Hub) -> None:
    ended = models("search", AGENTMEM_OFFLINE="1")
    assert ended.status == 1 and "AGENTMEM_OFFLINE" in ended.err and "unset it" in ended.err
    assert hub.seen == []
    assert models("search", AGENTMEM_OFFLINE="perhaps").status == 2
    assert "is a path" in models("pull", "./here").err


@pytest.mark.slow
def test_the_arithmetic_is_that_of_a_load(models: Any) -> None:
    """config.json alone gives what `agentmem doctor` finds by opening the model."""
    command = (sys.executable, "-m", "agentmem.process.checkup", "worker", "inference_service.doctor")
    _, found = parse(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)
    (facts,) = (each.facts for each in found if each.check == "model demo")
    (told,) = json.loads(models("search", "tiny-4bit", "--json").out)
    assert told["weight_bytes"] == facts["weight_bytes"]
    assert told["activation_bytes"] == facts["activation_bytes"]
    assert told["agents_4k"] == facts["agents"] > 0


@pytest.mark.slow
def test_a_hub_that_is_not_there(environment: dict[str, str]) -> None:
    nowhere = environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    ended = subprocess.run((*COMMAND, "pull", "org/x"), capture_output=True, text=True, check=False, env=nowhere)
    assert ended.returncode == 1
    assert "127.0.0.1 cannot be reached" in ended.stderr and ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_ends_a_pull_that_goes_on_later(hub: Hub, environment: dict[str, str]) -> None:
    hub.repositories["org/slow"] = Repository(demo(), seconds=60)
    with subprocess.Popen(
        (*COMMAND, "pull", "org/slow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert "org/slow" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.wait(120)
        assert "the same command goes on with what is missing" in process.stderr.read()
    assert process.returncode == 130
