"""Folders of models: each fault has its sentence, and what mlx-lm loads is not refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from mlx_lm.utils import MODEL_REMAPPING

from agentmem.process.model_folders import file_problem, folder_problem, is_missing
from agentmem.process.model_registry import register
from agentmem.process.models import problem_of_source
from inference_service.models.sources import registry

DEMO = Path(registry([])["demo"].source)
SEARCH = "`agentmem models search"
SHARD = "model-{:05}-of-00003.safetensors"

Harm = Callable[[Path], object]


def whole(folder: Path) -> Path:
    """Write files that no loader would take, by whose names and beginnings a folder is judged."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(b"x" * 200)
    return folder


def config(text: str) -> Harm:
    return lambda folder: (folder / "config.json").write_text(text)


def without(*names: str) -> Harm:
    return lambda folder: [(folder / name).unlink() for name in names]


def gguf(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "Llama-3.2-3B-Instruct-Q4_K_M.gguf")


def adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


def parent(folder: Path) -> None:
    whole(folder / "llama-8b")
    (folder / "config.json").unlink()


def cache(folder: Path) -> None:
    (folder / "config.json").unlink()
    whole(folder / "snapshots" / "0123")


def shards(*numbers: int) -> Harm:
    def harm(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        for number in numbers:
            (folder / SHARD.format(number)).touch()

    return harm


def pytorch(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")


def dangling(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("nowhere")


def tekken(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tekken.json")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (gguf, f"it has only GGUF, and Agentmem runs MLX safetensors: {SEARCH} Llama-3.2-3B-Instruct` finds one"),
        (without("config.json"), f"it has no config.json; give the folder of a model in MLX safetensors, as {SEARCH}`"),
        (adapter, "it is a LoRA adapter; give its base as --model, and this as --adapter BASE+NAME=DIRECTORY"),
        (parent, "it has no config.json; did you mean llama-8b in it?"),
        (cache, "it has no config.json; did you mean snapshots/0123 in it?"),
        (config("{'a': 1}"), "config.json is not JSON (Expecting property name enclosed in double quotes: line 1"),
        (config("\xff"), "config.json is not JSON ("),
        (config("[]"), "config.json names no model_type; take a model that mlx-lm loads"),
        (config("{}"), "config.json names no model_type"),
        (config('{"model_type": "bert"}'), "does not know its model type 'bert'"),
        (config('{"model_type": "lllama"}'), "does not know its model type 'lllama'; did you mean llama"),
        (without("model.safetensors"), "it has no weights (model*.safetensors); fetch the model again, or take one in"),
        (pytorch, "it has no weights (model*.safetensors), but pytorch_model.bin; fetch"),
        (dangling, "it has no weights (model*.safetensors); fetch the model again"),
        (shards(1, 3), "model-00002-of-00003.safetensors is missing; fetch it again"),
        (shards(2), f"{SHARD.format(1)}, {SHARD.format(3)} are missing; fetch it again"),
        (pointer, "model.safetensors is only a pointer of Git LFS; `git lfs pull` in that folder fetches the file"),
        (without("tokenizer.json"), "it has no tokenizer; copy tokenizer.json and tokenizer_config.json of the model"),
        (tekken, "tokenizer.json is missing: tekken.json alone is Mistral's own format"),
    ],
)
def test_each_fault_has_its_sentence(tmp_path: Path, harm: Harm, said: str) -> None:
    folder = whole(tmp_path / "m")
    assert folder_problem(folder) == ""
    harm(folder)
    problem = folder_problem(folder)
    assert said in problem and "\n" not in problem


def leftover(folder: Path) -> None:
    (folder / SHARD.format(1)).touch()


def stale_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": SHARD.format(1)}}))


def beside_gguf(folder: Path) -> None:
    (folder / "model.gguf").touch()


def sentencepiece(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")


@pytest.mark.parametrize("harm", [leftover, stale_index, beside_gguf, sentencepiece, shards(1, 2, 3)])
def test_folders_that_mlx_lm_may_load_pass(tmp_path: Path, harm: Harm) -> None:
    folder = whole(tmp_path / "m")
    harm(folder)
    assert folder_problem(folder) == ""


def test_every_model_type_of_the_reference_is_known(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/reference/model-types.md").read_text()
    types = {*re.findall(r"^\| `?([\w.-]+)`? \|", page, re.MULTILINE), *MODEL_REMAPPING} - {"type", "---"}
    assert len(types) > 100
    folder = whole(tmp_path / "m")
    for model_type in types:
        config(json.dumps({"model_type": model_type}))(folder)
        assert folder_problem(folder) == "", model_type


def test_the_demo_model_passes() -> None:
    assert folder_problem(DEMO) == ""


def test_many_missing_files_are_counted() -> None:
    assert is_missing(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more are missing; fetch it again"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Qwen2.5-7B-Instruct-IQ4_XS.gguf", "Qwen2.5-7B-Instruct"),
        ("gemma-3-4b-it.Q8_0.gguf", "gemma-3-4b-it"),
        ("phi-4-F16-00001-of-00002.GGUF", "phi-4"),
        ("my model.gguf", "'my model'"),
    ],
)
def test_a_gguf_file_is_told_what_to_look_for(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).touch()
    said = f"{tmp_path / name} is a GGUF file, and Agentmem runs MLX safetensors: {SEARCH} {words}` finds one"
    assert file_problem(tmp_path / name) == said
    with pytest.raises(ValueError, match=re.escape(said)):
        register([str(tmp_path / name)])


def test_a_gguf_file_is_known_by_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "sha256-0f").write_bytes(b"GGUF\x03\x00")
    assert "is a GGUF file" in problem_of_source("sha256-0f", tmp_path)
    (tmp_path / "text").write_text("GG")
    assert problem_of_source("text", tmp_path).endswith("/text is not a directory")
    assert problem_of_source("/dev/null", tmp_path) == "/dev/null is not a directory"


@pytest.mark.parametrize(
    ("name", "words"), [("smol", "smol"), ("llama3.2:3b", "llama3.2 3b"), ("Qwen 3", "Qwen 3"), ("gpt2", "gpt2")]
)
def test_a_name_alone_is_asked_for_its_owner_or_place(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^--model .*hub ids are OWNER/NAME") as caught:
        register([name])
    said = f"did you mean OWNER/{name} or ./{name}? {SEARCH} {words}` finds models"
    assert str(caught.value).endswith(said)
