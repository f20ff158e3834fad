"""The parts of mlx-lm used beyond its public interface; test_mlx_lm_adapter.py checks each.

- tokenizer_utils: the name `AutoTokenizer`
- load_model: the default of its parameter `get_model_classes`
- utils: `hf_repo_to_path`, `DEFAULT_ALLOW_PATTERNS`
- models.*: the name `scaled_dot_product_attention`
"""

import inspect
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from mlx_lm import tokenizer_utils
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS, hf_repo_to_path, load_model
from mlx_lm.utils import load_tokenizer as _load_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from inference_service.engine import tiktoken_files

__all__ = [
    "ATTENTION_NAME",
    "DEFAULT_ALLOW_PATTERNS",
    "hf_repo_to_path",
    "load_tokenizer",
    "model_classes",
]

ATTENTION_NAME: Final = "scaled_dot_product_attention"


def model_classes(config: dict[str, Any]) -> tuple[Any, Any]:
    found: tuple[Any, Any] = inspect.signature(load_model).parameters["get_model_classes"].default(config)
    return found


def load_tokenizer(directory: Path, eos_token_ids: Any) -> TokenizerWrapper:
    """For some model types transformers 5 replaces the file's rules: it takes a Qwen 2's digits one by one."""
    return _load_tokenizer(directory, eos_token_ids=eos_token_ids)


class _OfKnownCode(PreTrainedTokenizerFast):  # type: ignore[misc]
    """Its templates see tools with sorted keys."""

    def apply_chat_template(self, conversation: Any, tools: Any = None, **arguments: Any) -> Any:
        return super().apply_chat_template(conversation, tools=_sorted(tools), **arguments)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(each) for key, each in sorted(value.items())}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


class _AutoTokenizer:
    @staticmethod
    def from_pretrained(directory: Path, **arguments: Any) -> Any:
        """A repository's code is never run."""
        files = Path(directory)
        if (files / "tokenizer.json").exists():
            return PreTrainedTokenizerFast.from_pretrained(directory, **arguments)
        if (files / tiktoken_files.FILE).exists():
            # transformers would split text otherwise.
            with TemporaryDirectory(prefix="agentmem-tokenizer-") as converted:
                tiktoken_files.convert(files, Path(converted))
                return _OfKnownCode.from_pretrained(converted, **arguments)
        return AutoTokenizer.from_pretrained(directory, **{**arguments, "trust_remote_code": False})


tokenizer_utils.AutoTokenizer = _AutoTokenizer
