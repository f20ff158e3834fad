"""Prompts that are short enough to ride along, and models of all kinds of K and V."""

from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import prompt_of
from tests.tiny_models import write_deepseek2, write_gemma3, write_llama

RIDING = [write_llama, write_gemma3, write_deepseek2]
LENGTHS = (2, 40, 45, 47, 60)


def some_prompts(model: LoadedModel, *lengths: int) -> list[list[int]]:
    return [prompt_of(model, number, 20)[:length] for number, length in enumerate(lengths)]
