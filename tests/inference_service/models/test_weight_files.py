"""Files of weights: which a download lacks, and that a model is judged by its tensors and not by what an index says."""

import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from agentmem.errors import FailedPrecondition
from agentmem.process.model_folders import lacking
from inference_service.engine.attention import AttentionBackend
from inference_service.models.opening import ModelInfo, ModelSpec, open_network, open_text
from tests.tiny_models import INDEX, SHARDS, write_deepseek2, write_llama, write_quantized, write_shards

OTHERS = tuple(f"model-{number:05}-of-00005.safetensors" for number in range(1, 6))
WHOLE = "model.safetensors"


def opened(directory: Path) -> ModelInfo:
    spec = ModelSpec("m", directory)
    return open_network(spec, open_text(spec), AttentionBackend())[0]


def write_index(directory: Path, places: dict[str, str]) -> None:
    (directory / INDEX).write_text(json.dumps({"weight_map": places}))


def test_a_stale_index_refuses_no_model(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "m")
    write_index(directory, {f"of another model {number}": name for number, name in enumerate(OTHERS)})
    assert lacking(directory) == []
    assert opened(directory).weight_bytes > 0


@pytest.mark.parametrize("write", [write_llama, write_deepseek2])
def test_a_file_that_is_missing_is_named(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    """Also where mlx-lm's code for the model fails over its tensors before it counts them."""
    directory = write_shards(write(tmp_path / "m"), SHARDS)
    (directory / SHARDS[1]).unlink()
    assert lacking(directory) == [SHARDS[1]]
    with pytest.raises(FailedPrecondition, match=f"{SHARDS[1]} is missing; fetch it again"):
        opened(directory)


def test_a_link_to_nothing_is_no_file(tmp_path: Path) -> None:
    """As hubs' caches have them, whose files are links."""
    directory = write_shards(write_llama(tmp_path / "m"), SHARDS)
    (directory / SHARDS[0]).unlink()
    (directory / SHARDS[0]).symlink_to(tmp_path / "nowhere")
    assert lacking(directory) == [SHARDS[0]]


def test_tensors_that_no_file_has_are_named(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "m")
    weights = mx.load(str(directory / WHOLE))
    mx.eval(weights)
    del weights["model.layers.0.self_attn.q_proj.weight"]
    (directory / WHOLE).unlink()
    mx.save_safetensors(str(directory / WHOLE), weights)
    with pytest.raises(FailedPrecondition, match=r"Missing 1 parameters: model\.layers\.0\.self_attn\.q_proj\.weight"):
        opened(directory)


def test_thousands_of_tensors_are_not_all_named(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "m")
    (directory / WHOLE).unlink()
    mx.save_safetensors(str(directory / WHOLE), {f"other.{number}": mx.zeros(1) for number in range(2000)})
    with pytest.raises(FailedPrecondition, match=r"Received 2000 parameters not in model: other\.0, .*…") as caught:
        opened(directory)
    assert len(caught.value.message) < 1500


@pytest.mark.parametrize("nested", [False, True])
def test_mlx_settings_under_quantization_config_alone_are_taken(tmp_path: Path, nested: bool) -> None:
    source = write_llama(tmp_path / "m")
    directory = write_quantized(tmp_path / "q", source, group_size=64, bits=4)
    config = json.loads((directory / "config.json").read_text())
    settings = {"group_size": config["quantization"]["group_size"], "bits": config["quantization"]["bits"]}
    del config["quantization"], config["quantization_config"]
    own = {"quantization_config": settings}
    config |= {"text_config": {**own, "max_position_embeddings": 4096}} if nested else own
    (directory / "config.json").write_text(json.dumps(config))
    assert opened(directory).weight_bytes < opened(source).weight_bytes


def test_a_quantization_config_that_names_no_method_is_refused(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "m")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": {"weight_dtype": "int4"}}))
    with pytest.raises(FailedPrecondition, match="has neither quant_method nor bits and group_size"):
        opened(directory)
