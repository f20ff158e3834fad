import json

import pytest
from transformers import AutoTokenizer

from tests import npm_tokenizers
from tests.full_matrix import FULL


@pytest.mark.slow("gemma3", "llama2", "mistral_nemo", "gptoss")
@pytest.mark.parametrize("name", npm_tokenizers.NAMES)
def test_packages_hold_what_a_model_directory_does(name: str) -> None:
    directory = npm_tokenizers.directory(name)
    assert sorted(path.name for path in directory.iterdir()) == sorted(npm_tokenizers.FILES)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert ("chat_template" in config) == (name in npm_tokenizers.WITH_TEMPLATE)
    assert npm_tokenizers.backend(name).encode("The boat", add_special_tokens=False).ids


@pytest.mark.slow
@pytest.mark.parametrize("name", npm_tokenizers.WITH_TEMPLATE[:: 1 if FULL else 3])
def test_templates_render_by_transformers(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(npm_tokenizers.directory(name))
    chat = [{"role": "user", "content": "The boat is green."}]
    assert "The boat is green." in tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
