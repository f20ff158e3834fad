"""Loading: what a model is found to be, and what is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
import tokenizers

from agentmem.errors import FailedPrecondition
from agentmem.kv.bits import KVBits
from benchmarks.loading import load
from inference_service.domain import MessagesInput
from inference_service.engine.geometry import LayerGroup
from inference_service.models import opening
from inference_service.models.capability import QuantizationSettings
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.models.opening import ModelSpec, open_text
from tests.scripted_model import write_scripted
from tests.tiny_models import write_gemma3, write_llama, write_qwen2

DEMO = Path(opening.__file__).parents[1] / "demo_model"
pytestmark = pytest.mark.usefixtures("by_openblas")


@pytest.fixture
def hashes(tmp_path: Path) -> ContentHashes:
    return ContentHashes(tmp_path / "hashes" / "weights.json")


def loaded(directory: Path, hashes: ContentHashes, **options: object) -> LoadedModel:
    return load("tiny", str(directory), hashes=hashes, **options)  # type: ignore[arg-type]


def test_geometry_comes_from_the_model(tmp_path: Path, hashes: ContentHashes) -> None:
    model = loaded(write_llama(tmp_path / "m"), hashes)
    geometry = model.geometry
    assert (geometry.layers, geometry.heads, geometry.full, geometry.sliding) == (
        2,
        4,
        LayerGroup((0, 1), 2, 64, 64),
        None,
    )
    assert geometry.dtype == mx.float32, "on CPU everything else is slower"
    # 2 layers x 2 heads x (64 + 64) elements x (4 bits + two float32 per group of 64)
    assert geometry.bytes_per_token == 2 * 2 * 128 * (4 / 8 + 8 / 64)
    assert model.context_length == 4096
    assert model.architecture == "llama"


@pytest.mark.slow
def test_fingerprint_names_content_and_quantization(tmp_path: Path, hashes: ContentHashes) -> None:
    first = loaded(write_llama(tmp_path / "a", seed=1), hashes).fingerprint
    assert loaded(write_llama(tmp_path / "same", seed=1), hashes).fingerprint == first
    assert loaded(write_llama(tmp_path / "b", seed=2), hashes).fingerprint != first, "equal shapes, other weights"
    by_bits = {
        loaded(tmp_path / "a", hashes, quantization=QuantizationSettings(KVBits.parse(bits), 64)).fingerprint
        for bits in ("4", "8", "8/4", "4/8", "5/4", "5")
    }
    assert first in by_bits and len(by_bits) == 6
    assert loaded(tmp_path / "a", hashes, dtype="bfloat16").fingerprint != first
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(json.dumps({**config, "rope_theta": 5000.0}))
    assert loaded(tmp_path / "a", hashes).fingerprint != first


def test_fingerprint_leaves_the_chat_template_out(tmp_path: Path, hashes: ContentHashes) -> None:
    first = loaded(write_llama(tmp_path / "a"), hashes).fingerprint
    assert loaded(write_llama(tmp_path / "b", template="{{ messages }}"), hashes).fingerprint == first


@pytest.mark.slow("80-64-64-128", "96-None-32-96")
@pytest.mark.parametrize(
    ("width", "asked", "group_size", "kept"),
    [(64, None, 64, 64), (96, None, 32, 96), (80, None, 32, 96), (80, 64, 64, 128)],
)
def test_heads_that_groups_do_not_divide_are_filled_up(
    tmp_path: Path, hashes: ContentHashes, width: int, asked: int | None, group_size: int, kept: int
) -> None:
    model = loaded(
        write_llama(tmp_path / "m", head_dim=width), hashes, quantization=QuantizationSettings(group_size=asked)
    )
    assert (model.geometry.format.group_size, model.geometry.full.k_dim, model.geometry.full.v_dim) == (
        group_size,
        kept,
        kept,
    )


@pytest.mark.slow
def test_how_calls_are_written_comes_from_template_and_settings(tmp_path: Path, hashes: ContentHashes) -> None:
    assert loaded(write_llama(tmp_path / "none"), hashes).call_syntax is None
    directory = write_scripted(tmp_path / "m")
    found = loaded(directory, hashes).call_syntax
    assert found is not None
    assert (found.name, found.start, found.end) == ("json_tools", b"<tool_call>", b"</tool_call>")
    settings = directory / "tokenizer_config.json"
    config = json.loads(settings.read_text())
    settings.write_text(json.dumps({**config, "tool_parser_type": "mistral"}))
    named = loaded(directory, hashes).call_syntax
    assert named is not None
    assert (named.name, named.start, named.end) == ("mistral", b"[TOOL_CALLS]", b"")
    settings.write_text(json.dumps({**config, "tool_parser_type": "of_tomorrow"}))
    with pytest.raises(FailedPrecondition, match="of_tomorrow"):
        loaded(directory, hashes)


@pytest.mark.parametrize(
    ("write", "tokenizer_class"),
    [(write_qwen2, "Qwen2TokenizerFast"), (write_qwen2, "LlamaTokenizerFast"), (write_gemma3, "GemmaTokenizerFast")],
)
def test_text_is_tokenized_as_tokenizer_json_says(
    tmp_path: Path, write: Callable[[Path], Path], tokenizer_class: str
) -> None:
    """transformers has rules of its own for these, which take a text's digits one by one, or know other tokens."""
    directory = write(tmp_path / "m")
    file = shutil.copy(DEMO / "tokenizer.json", directory)
    settings = json.loads((DEMO / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": tokenizer_class}))
    ids = tokenizers.Tokenizer.from_file(str(file)).encode("Cabin 417 is green.", add_special_tokens=False).ids
    tokenizer = open_text(ModelSpec("m", directory)).tokenizer
    assert tokenizer.encode("Cabin 417 is green.", parse_special=False) == ids
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [2]
    assert tokenizer.vocab_size == 3072


def test_a_model_without_template_says_so(tmp_path: Path, hashes: ContentHashes) -> None:
    directory = write_llama(tmp_path / "m")
    config = json.loads((directory / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    model = loaded(directory, hashes)
    with pytest.raises(FailedPrecondition, match="no chat template"):
        model.renderer.messages(
            MessagesInput(({"role": "user", "content": "hi"},)), generation_prompt=True, parse_special=False
        )
