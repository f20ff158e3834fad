"""Fixtures `directory` of modules that test models of their own choice."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Writer = Callable[..., Path]


def names(writers: Sequence[Writer]) -> list[str]:
    return [writer.__name__.removeprefix("write_") for writer in writers]


def written_by(writers: Sequence[Writer], ids: Sequence[str] = (), **options: Any) -> Any:
    """Return a module's fixture: the directory of a model by each writer."""

    def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        made: Path = request.param(tmp_path_factory.mktemp("model"), **options)
        return made

    return pytest.fixture(scope="module", params=writers, ids=list(ids) or names(writers))(directory)
